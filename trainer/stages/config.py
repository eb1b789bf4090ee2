"""A run's configuration: a TOML file, read into values that say what each means. What it does not know is an error."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cuda_agent_backend.agent.policies.trained.allowance import TURNS
from trainer.health.alarms import Limits
from trainer.policy.model import ModelSettings, Size
from trainer.ppo.losses import Clip
from trainer.rivals.registry import RIVALS as ARENA
from trainer.rollout.episodes import Reward
from trainer.rollout.held_out import HeldOut, in_all

STAGES = ("pretrain", "warmup", "rft", "value", "agentic", "live", "eval")
"""In the order in which they chain; a run may leave any out."""
PLAIN = ("search", "chance")
"""Rivals of pretraining that need no tables."""
SEARCHES = ("order", "bayesian")
"""That evaluation can play: in the order of the proposals, and with the Gaussian process as it is served."""
VALIDATED = ("pretrain", "warmup", "rft", "agentic", "live")
"""Stages whose actor learns, so that there is a best one."""


class BadConfig(Exception):
    """What is wrong with a configuration: where, and what may be there."""


@dataclass(frozen=True)
class WorldSettings:
    """Where episodes are played.

    kind: "tables" replays tables of measured schedules; "judge" has the sandbox judge kernels of a set of tasks;
    "factory" is a function ``module:name`` of this settings' value that gives a `World`. paths: of the tables or tasks.
    device: cpu or cuda. held_out: the share of task families that is never trained on; held_out_part: which one of such
    shares, from 0. validated: the share of the other families that is not trained on either: a stage with ``validate``
    plays it to choose its checkpoint. A world for evaluation has no use for it. side_by_side: episodes at once.
    """

    kind: Literal["tables", "judge", "factory"] = "tables"
    paths: tuple[str, ...] = ()
    factory: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    held_out: float = 0.2
    held_out_part: int = 0
    validated: float = 0.0
    side_by_side: int = 64


@dataclass(frozen=True)
class StageSettings:
    """One stage.

    steps: updates. episodes: of one step, all processes together. attempts: at each of its tasks. judgements: budgets,
    of which each episode is told one. turns: of an episode at most. actor_rate, critic_rate: learning rates (0: not
    trained). reward: see `rollout.episodes`. rivals: of pretraining, whose episodes are read: "search", "chance", and
    on tables those of the arena, each learnt from other families than the task's; of evaluation, those of the arena.
    seeds: of evaluation, 0 for no arena. against: of evaluation, the searches that play the same tasks. single: of
    evaluation, one answer a task, which is judged as it is. every: steps between checkpoints. validate: budgets in
    judgements, at each of which every checkpoint's actor plays the world's validation tasks; the best one is what the
    stage ends with (none: the last one is). most_judgements: after which a stage ends, of all episodes that it learns
    from together (0: `steps` alone end it). ids: of one piece of a batch. bootstrap: see `ppo.prepare.Estimates`.
    world: instead of the run's.
    """

    steps: int = 50
    episodes: int = 64
    attempts: int = 4
    judgements: tuple[int, ...] = (1, 3, 10, 30)
    turns: int = TURNS
    actor_rate: float = 3e-4
    critic_rate: float = 6e-4
    epochs: int = 2
    minibatches: int = 2
    ids: int = 16_384
    gradient_norm: float = 1.0
    entropy: float = 0.0
    temperature: float = 1.0
    clip: Clip = field(default_factory=Clip)
    bootstrap: bool = True
    reward: Reward = "outcome"
    rivals: tuple[str, ...] = ("search", "chance")
    seeds: int = 5
    against: tuple[str, ...] = SEARCHES
    single: bool = False
    every: int = 5
    validate: tuple[int, ...] = ()
    most_judgements: int = 0
    world: WorldSettings | None = None


EVALUATED = StageSettings(
    steps=1,
    temperature=0.0,
    rivals=(
        "random",
        "order",
        "portfolio",
        "nearest",
        "search",
        "search-warm",
        "ranker",
        "ranker-torch",
        "ranker-search",
    ),
)


@dataclass(frozen=True)
class Config:
    """A run. stages: those that ``run`` does, in their order. A stage begins from the last one before it that is done.

    threads: of the processor, for a model this small on few cores 1 is often fastest; 0: as torch has it.
    """

    seed: int = 0
    threads: int = 0
    stages: tuple[str, ...] = ("pretrain", "warmup", "rft", "value", "agentic", "eval")
    model: ModelSettings = field(default_factory=ModelSettings)
    world: WorldSettings = field(default_factory=WorldSettings)
    alarms: Limits = field(default_factory=Limits)
    pretrain: StageSettings = field(
        default_factory=lambda: StageSettings(attempts=1, epochs=1, minibatches=4)
    )
    warmup: StageSettings = field(default_factory=StageSettings)
    rft: StageSettings = field(default_factory=lambda: StageSettings(epochs=1))
    value: StageSettings = field(
        default_factory=lambda: StageSettings(steps=10, epochs=8, critic_rate=1e-3)
    )
    agentic: StageSettings = field(default_factory=StageSettings)
    live: StageSettings = field(default_factory=StageSettings)
    eval: StageSettings = field(default_factory=lambda: EVALUATED)

    def stage(self, name: str) -> StageSettings:
        """The settings of a stage."""
        found: StageSettings = getattr(self, name)
        return found

    def held_out(self, last: str) -> HeldOut:
        """The families that no stage was trained on, up to ``last``; a share of 0 where their worlds hold out several
        parts. Which ones a share holds out hangs on their names alone, so that those of the smallest share of one part
        are held out of every stage's world. Raises ValueError where a world's part is none."""
        before = [name for name in STAGES[: STAGES.index(last)] if name in self.stages]
        worlds = [self.stage(name).world or self.world for name in (*before, last)]
        return in_all([held_out_of(world) for world in worlds])

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


def read(path: Path, changes: Sequence[str] = ()) -> Config:
    """The configuration of a file. changes: to it, such as ``rft.steps=5``. Raises `BadConfig`."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise BadConfig(
            f"{path} cannot be read: {error.strerror}; examples lie in examples/"
        ) from error
    for change in changes:
        given = _changed(given, *_assignment(change))
    made: Config = _made(Config(), given, str(path))
    unknown = [name for name in made.stages if name not in STAGES]
    if unknown or list(made.stages) != sorted(set(made.stages), key=STAGES.index):
        raise BadConfig(f"{path}: stages are some of {', '.join(STAGES)}, in this order")
    for name in made.stages:
        _check(made.stage(name), f"{path}: [{name}]")
    _check_held_out(made, path)
    for name in STAGES:
        if why := _wrong_validation(made, name):
            raise BadConfig(f"{path}: [{name}] {why}")
    if why := _wrong_model(made.model):
        raise BadConfig(f"{path}: [model] {why}")
    if made.model.checkpoint and "pretrain" in made.stages and "chance" in made.pretrain.rivals:
        raise BadConfig(
            f'{path}: [pretrain] rivals has "chance", which speaks no pretrained model\'s words; give ["search"]'
        )
    every = dict.fromkeys((*PLAIN, *ARENA))
    strangers = [name for name in made.pretrain.rivals if name not in every]
    if strangers or not made.pretrain.rivals:
        raise BadConfig(f"{path}: [pretrain] rivals are some of {', '.join(every)}")
    world = made.pretrain.world or made.world
    of_tables = [name for name in made.pretrain.rivals if name not in PLAIN]
    if of_tables and "pretrain" in made.stages and world.kind != "tables":
        raise BadConfig(
            f"{path}: [pretrain] {', '.join(of_tables)} learn from tables, and its world has none; give "
            f'[pretrain.world] kind = "tables", or rivals {", ".join(PLAIN)}'
        )
    _check_evaluation(made, path)
    return made


def _assignment(text: str) -> tuple[list[str], Any]:
    """Names and value; what is no TOML value is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadConfig(f"{text!r} is no change of a setting, such as rft.steps=5")
    try:
        return name.strip().split("."), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip().split("."), value


def _changed(given: Mapping[str, Any], names: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = names
    if not rest:
        return {**given, first: value}
    below = given.get(first, {})
    if not isinstance(below, Mapping):
        raise BadConfig(f"{first} is no table, so it has no {'.'.join(rest)}")
    return {**given, first: _changed(below, rest, value)}


def _check_held_out(made: Config, path: Path) -> None:
    """Raises `BadConfig` where a world has no such part, or evaluation plays what a stage before it was trained on."""
    for name in made.stages:
        try:
            held_out_of(made.stage(name).world or made.world)
        except ValueError as error:
            raise BadConfig(f"{path}: [{name}] world: held_out, held_out_part: {error}") from None
    before = [name for name in made.stages if name != "eval"]
    if "eval" not in made.stages or not before:
        return
    kept_from, played = made.held_out(before[-1]), held_out_of(made.eval.world or made.world)
    if 0 < played.share < 1 and not kept_from.covers(played):
        raise BadConfig(
            f"{path}: [eval] would play families that stages before it are trained on: give all worlds one held_out "
            "and one held_out_part, or [eval.world] tasks of its own with held_out = 1"
        )


def _wrong_validation(made: Config, name: str) -> str:
    """What is wrong with how a stage validates; "" if nothing is. A world with a larger share keeps the families of a
    smaller one too, as names alone say which ones they are."""
    stage, share = made.stage(name), (made.stage(name).world or made.world).validated
    if not 0.0 <= share < 1.0:
        return f"world: validated is {share:g}; it is a share from 0, and below 1"
    if not stage.validate:
        return ""
    if name not in VALIDATED:
        return f"validate is of stages whose actor learns: {', '.join(VALIDATED)}"
    if min(stage.validate) < 1 or len(stage.validate) > len(set(stage.validate)):
        return f"validate is {list(stage.validate)}; it is budgets of at least 1, each once"
    if not share:
        return (
            "validate plays families that no stage is trained on; give [world] a validated above 0"
        )
    before = [s for s in STAGES[: STAGES.index(name)] if s in made.stages]
    taught = [s for s in before if (made.stage(s).world or made.world).validated < share]
    if taught:
        return f"validate would choose by families that {', '.join(taught)} trains on; give all worlds one validated"
    return ""


def held_out_of(world: WorldSettings) -> HeldOut:
    """The families of a world that are not trained on. Raises ValueError where there is no such part."""
    return HeldOut(world.held_out, world.held_out_part)


def _check_evaluation(made: Config, path: Path) -> None:
    against = made.eval.against
    if set(against) - set(SEARCHES) or len(against) > len(set(against)):
        raise BadConfig(
            f"{path}: [eval] against is {list(against)}; it is some of {', '.join(SEARCHES)}, each once"
        )
    if len(made.eval.judgements) > len(set(made.eval.judgements)):
        raise BadConfig(f"{path}: [eval] judgements has a budget twice")
    alone = [name for name in STAGES if name != "eval" and made.stage(name).single]
    if alone:
        raise BadConfig(
            f"{path}: [{alone[0]}] single is of [eval] alone; the stage that learns from one answer a task is warmup"
        )


def _wrong_model(model: ModelSettings) -> str:
    """What is wrong with a model's settings; "" if nothing is."""
    own = [f.name for f in dataclasses.fields(Size) if f.name != "window"]
    lora = model.lora
    if not model.checkpoint:
        return "lora needs a checkpoint: adapters are of a pretrained model" if lora else ""
    given = [name for name in own if getattr(model, name) != getattr(Size(), name)]
    if given:
        return f"has a checkpoint, whose own size counts; leave out {', '.join(given)}"
    if not 0 < model.message < model.window:
        return f"message is {model.message}; it is above 0 and below window ({model.window})"
    if lora is None:
        whole = "without lora all weights are trained, and bfloat16 loses their small changes"
        return (
            "" if model.dtype == "float32" else f'{whole}; give [model.lora], or dtype = "float32"'
        )
    if lora.rank < 1 or lora.alpha <= 0 or not 0 <= lora.dropout < 1 or not lora.targets:
        return "lora has a rank of at least 1, an alpha above 0, a dropout in [0, 1), and targets"
    return ""


def _check(stage: StageSettings, where: str) -> None:
    for name in ("steps", "episodes", "attempts", "turns", "epochs", "minibatches", "ids", "every"):
        if getattr(stage, name) < 1:
            raise BadConfig(f"{where} {name} is {getattr(stage, name)}; it is at least 1")
    if not stage.judgements or min(stage.judgements) < 1:
        raise BadConfig(f"{where} judgements are budgets of at least 1")
    if stage.episodes % stage.attempts:
        raise BadConfig(
            f"{where} episodes ({stage.episodes}) is no multiple of attempts ({stage.attempts})"
        )


def _made(base: Any, given: Mapping[str, Any], where: str) -> Any:
    """``base`` with the values given; tables become dataclasses."""
    hints = typing.get_type_hints(type(base))
    changes = {}
    for name, value in given.items():
        if name not in hints:
            raise BadConfig(f"{where}: there is no {name!r}; there are: {', '.join(hints)}")
        changes[name] = _value(hints[name], getattr(base, name), value, f"{where}: {name}")
    return dataclasses.replace(base, **changes)


def _value(hint: Any, old: Any, value: Any, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    table = next((k for k in kinds if dataclasses.is_dataclass(k)), None)
    if table is not None:
        if not isinstance(value, Mapping):
            raise BadConfig(f"{where} is a table")
        return _made(table() if old is None else old, value, where)  # type: ignore[operator]
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise BadConfig(
                f"{where} is {value!r}; it is one of {', '.join(typing.get_args(hint))}"
            )
        return value
    if typing.get_origin(hint) is tuple:
        of = typing.get_args(hint)[0]
        if not isinstance(value, list) or not all(_is(of, one) for one in value):
            raise BadConfig(f"{where} is a list of {of.__name__}")
        return tuple(value)
    if not _is(hint, value):
        raise BadConfig(f"{where} is {value!r}; it is of type {hint.__name__}")
    return hint(value)


def _is(kind: type, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
