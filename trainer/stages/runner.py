"""Runs a stage: step after step, with figures, checkpoints and alarms; goes on where a killed one ended.

DIR/config.json      what the run was configured as; another one is refused, but for what is not done yet
DIR/config-history.jsonl   what it was configured as before that changed
DIR/warmup/          figures.jsonl, tensorboard/, step-000050/, best/ (see `best`), done.json
DIR/eval/            episodes.jsonl, figures.json, done.json
DIR/policy/          the actor that the last stage ended with, for ``--policy trained --model DIR/policy``
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent_backend.agent.policies.trained.weights import CARD
from sandbox.file_locks import lock_at_once
from trainer.health.alarms import Alarm, alarm_of
from trainer.health.journal import Figures
from trainer.ppo.losses import NotANumber
from trainer.ppo.ranks import Ranks, first_finds
from trainer.rollout.held_out import of_card
from trainer.rollout.world import World
from trainer.stages import best, checkpoint
from trainer.stages.best import Score
from trainer.stages.config import STAGES, Config, StageSettings, WorldSettings, held_out_of
from trainer.stages.episode_book import BadBook, EpisodeBook
from trainer.stages.evaluate import Asked, Evaluation, evaluate, hows_of
from trainer.stages.learner import Kind, Learner
from trainer.stages.pretrained import FromCheckpoint
from trainer.stages.small import Small
from trainer.stages.steps import STEPS, Stage, ready_to_learn
from trainer.stages.validation import Validation

DONE, COLLAPSED, CONFIG = "done.json", "collapsed.json", "config.json"
HISTORY = "config-history.jsonl"
EPISODES, FIGURES = "episodes.jsonl", "figures.json"
"""Of an evaluation: all episodes that ended, and what they come to so far."""
TOLD = ("reward", "loss", "entropy", "validation")
"""Figures that are told of each step."""
WATCHED = ("warmup", "value", "agentic", "live")
"""Stages whose figures alarms look at."""

Tell = Callable[[str], None]


class RunFailed(Exception):
    """A stage cannot go on: what happened, where, what is kept and what to do."""


@dataclass(frozen=True)
class Run:
    """A folder with a configuration. world_of: see `worlds.world_of`. resume_collapsed: whether stages that alarms
    stopped before go on."""

    config: Config
    folder: Path
    ranks: Ranks
    world_of: Callable[..., World]
    tell: Tell = print
    resume_collapsed: bool = False


def run_stage(run: Run, name: str, asked: Asked | None = None) -> Mapping[str, Any]:
    """Do a stage, or what is left of it; what its end says. asked: of ``eval`` alone. Raises `RunFailed`, `OSError`,
    `Unusable`."""
    folder = run.folder / name
    with _alone(run):
        _same_config(run)
        if _is_stopped(run, folder / COLLAPSED):
            raise RunFailed(_again(folder))
        if name == "eval":
            return _evaluate(run, folder, asked or Asked())
        if (folder / DONE).is_file():
            return _read(folder / DONE)
        return _train(run, name, folder)


def _train(run: Run, name: str, folder: Path) -> Mapping[str, Any]:
    settings = run.config.stage(name)
    learner = new_learner(run, name)
    behaviour = None
    begin(run, name, learner)
    if name == "rft":
        behaviour = learner.kind.copy(learner.actor)
    done = _steps_in(run, folder)
    if done:
        checkpoint.load(learner, checkpoint.path_of(folder, done[-1]))
    first = done[-1] if done else 0
    world = run.world_of(settings.world or run.config.world)
    stage = Stage(name, run.config, world, learner, run.ranks, behaviour)
    figures = Figures(folder, first) if run.ranks.rank == 0 else None
    ready_to_learn(learner, settings.ids)
    validation = Validation(stage)
    score = _score_before(run, folder, first if done else None, validation)
    try:
        if not done:
            score = _first_score(run, validation, figures)
            _keep(run, learner, folder, 0, score)
        for step in range(first, settings.steps):
            if _is_spent(run, settings, figures):
                break
            score = _step(run, validation, folder, figures, step)
    finally:
        world.close()
        if figures is not None:
            figures.close()
    if settings.steps not in _steps_in(run, folder):
        _keep(run, learner, folder, settings.steps, score)
    return _finish(run, name, learner, folder, figures)


def _score_before(run: Run, folder: Path, step: int | None, validation: Validation) -> Score | None:
    """The score of the checkpoint that a stage goes on from. What a kill left of records is put right first."""
    if run.ranks.rank == 0:
        if validation.stage.settings.validate and not validation.plans:
            run.tell(
                f"{folder.name}: its world has no tasks to validate on, so its last policy counts"
            )
        best.settle(folder, validation.name)
    if step is None:
        return None
    score = best.score_in(checkpoint.path_of(folder, step))
    return score if score is not None and score.played == validation.name else None


def _first_score(run: Run, validation: Validation, figures: Figures | None) -> Score | None:
    """Of the actor that a stage begins with, which may be the best that there will be."""
    score = validation.score()
    if figures is not None and score is not None:
        figures.begin({"validation": score.value})
        run.tell(f"{validation.stage.name} step 0: validation {score.value:.3g}")
    return score


def _is_spent(
    run: Run, settings: StageSettings, figures: Figures | None, *more: Mapping[str, float]
) -> bool:
    """Whether a stage has had all judgements that it may have. Figures are rank 0's; more: of steps that they do not
    have yet."""
    most = settings.most_judgements
    if not most:
        return False
    mine = [*figures.steps, *more] if figures is not None else []
    spent = sum(settings.episodes * step.get("judgements", 0.0) for step in mine)
    return bool(run.ranks.everyones(spent >= most)[0])


def _evaluate(run: Run, folder: Path, asked: Asked) -> Mapping[str, Any]:
    """Play what is left of an evaluation, or of a part. What is known so far is in figures.json; done.json, or a part's
    own, is written once nothing is left."""
    until = time.monotonic() + asked.limit_s
    number, of = asked.part
    done = folder / (DONE if of == 1 else f"done-{number}-of-{of}.json")
    settings = run.config.eval.world or run.config.world
    terms = {
        "judgements": list(run.config.eval.judgements),
        "how": hows_of(run.config),
        "paths": list(settings.paths),
    }
    before = _ended(done, terms)
    if before is not None and asked.policy is None:
        return before
    learner = new_learner(run, "eval")
    origin = asked.policy or actor_before(run, "eval")
    if origin is not None:
        checkpoint.load_actor(learner, origin)
    elif not run.config.model.checkpoint:
        run.tell(
            "eval: no stage comes before it and no --policy is given: what plays has learnt nothing"
        )
    weights = "" if origin is None else checkpoint.digest_of(origin)
    if before is not None and before.get("weights") == weights:
        return before
    if asked.policy is not None and (why := _was_trained_on(asked.policy, settings)):
        raise RunFailed(why)
    world = run.world_of(settings, training=False)
    try:
        stage = Stage("eval", run.config, world, learner, run.ranks)
        book = EpisodeBook(folder / EPISODES)
        wanted = Evaluation(stage, book, weights, asked.part, until, run.tell)
        found = evaluate(wanted)
    except BadBook as error:
        raise RunFailed(str(error)) from error
    finally:
        world.close()
    said = {"stage": "eval", "weights": weights, "part": asked.part, **terms, **asdict(found)}
    if run.ranks.rank == 0:
        _write(folder / FIGURES, said)
        if not found.left:
            _write(done, said)
        else:
            done.unlink(missing_ok=True)  # of a part, by settings that have changed since
    run.ranks.everyones(None)
    return said


def _ended(done: Path, terms: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the end of an evaluation, or of a part, says; None where there is none, or it had other terms. Those that
    an older version did not write are taken for the same."""
    said = _read(done) if done.is_file() else None
    if said is None or any(said.get(name, value) != value for name, value in terms.items()):
        return None
    return said


def _was_trained_on(policy: Path, world: WorldSettings) -> str:
    """Why a policy is not to be tested on what a world holds out, by its card; "" where nothing speaks against it. A
    world that holds out all has tasks of its own."""
    try:
        card = _read(policy / CARD)
    except (OSError, ValueError):
        return ""
    kept_from, played = of_card(card), held_out_of(world)
    if kept_from is None or not 0 < played.share < 1 or kept_from.covers(played):
        return ""
    said = ", ".join(f"{name} = {value:g}" for name, value in kept_from.to_card().items())
    return (
        f"{policy} was kept from other families than [eval] would play; its card says {said}. Give [world], or "
        "[eval.world], the same"
    )


def _step(
    run: Run, validation: Validation, folder: Path, figures: Figures | None, step: int
) -> Score | None:
    """Do a step; the score of what it made, where that is validated: at a checkpoint, and where the stage ends."""
    stage, started = validation.stage, time.monotonic()
    try:
        found = STEPS[stage.name](stage, step)
    except NotANumber as error:
        _collapse(run, folder, Alarm("not a number", str(error), step), step)
    found["seconds"] = time.monotonic() - started
    alarm = score = None
    if figures is not None and stage.name in WATCHED:
        alarm = alarm_of([*figures.steps, found], run.config.alarms)
    alarm = run.ranks.everyones(alarm)[0]
    at_checkpoint = (step + 1) % stage.settings.every == 0
    if alarm is None and validation.plans:
        ends = step + 1 == stage.settings.steps or _is_spent(run, stage.settings, figures, found)
        score = validation.score() if at_checkpoint or ends else None
        found |= {} if score is None else {"validation": score.value}
    if figures is not None:
        figures.add(found)
        told = " ".join(f"{name} {found[name]:.3g}" for name in TOLD if name in found)
        run.tell(f"{stage.name} step {step + 1}: {told}")
    if alarm is not None:
        _collapse(run, folder, alarm, step)
    if at_checkpoint:
        _keep(run, stage.learner, folder, step + 1, score)
    return score


def _steps_in(run: Run, folder: Path) -> list[int]:
    """See `checkpoint.steps_in`: those that rank 0 finds, which writes and removes them while others look."""
    return first_finds(run.ranks, lambda: checkpoint.steps_in(folder))


def _keep(run: Run, learner: Learner, folder: Path, step: int, score: Score | None) -> None:
    if run.ranks.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state: dict[str, Any] = {"stage": folder.name, "seed": run.config.seed}
        state |= {} if score is None else score.to_state()
        every = run.config.stage(folder.name).every
        kept = checkpoint.reaching_back(run.config.alarms.window, every)
        checkpoint.save(learner, folder, step, state, kept)
        if score is not None:
            best.settle(folder, score.played)
    run.ranks.everyones(None)


def _collapse(run: Run, folder: Path, alarm: Alarm, step: int) -> None:
    """Drop checkpoints of the time when it went wrong, and stop."""
    raise RunFailed(first_finds(run.ranks, lambda: _rolled_back(folder, alarm, step)))


def _rolled_back(folder: Path, alarm: Alarm, step: int) -> str:
    """Remove what is bad, and note why; what is said of it."""
    steps = checkpoint.steps_in(folder)
    before = [n for n in steps if n <= alarm.since]
    good = max(before, default=min(steps))
    for bad in (n for n in steps if n > good):
        shutil.rmtree(checkpoint.path_of(folder, bad))
    best.drop_after(folder, good)
    said = {"alarm": alarm.name, "reason": alarm.reason, "step": step + 1, "good": good}
    _write(folder / COLLAPSED, {**said, "since": alarm.since, "doubtful": not before})
    return _again(folder)


def _is_stopped(run: Run, collapsed: Path) -> bool:
    """Whether alarms have stopped the stage; where it is to go on all the same, that is forgotten."""

    def found() -> bool:
        if run.resume_collapsed:
            collapsed.unlink(missing_ok=True)
        return collapsed.is_file()

    return first_finds(run.ranks, found)


def _again(folder: Path) -> str:
    said = _read(folder / COLLAPSED)
    good = checkpoint.path_of(folder, said["good"])
    stopped = f"{folder.name} was stopped at step {said['step']}: {said['reason']}."
    on = "change what made it collapse (a lower rate, more episodes a step) and add --resume-collapsed"
    if said.get("doubtful"):
        return (
            f"{stopped} No checkpoint is left from before step {said['since'] + 1}, the first of those that look bad. "
            f"To begin the stage anew, remove {folder}. To go on from the oldest checkpoint, {good}, which may be bad "
            f"itself, {on}"
        )
    return f"{stopped} The last good checkpoint is {good}. To go on from it, {on}"


def _finish(
    run: Run, name: str, learner: Learner, folder: Path, figures: Figures | None
) -> Mapping[str, Any]:
    said: dict[str, Any] = {"stage": name, "steps": run.config.stage(name).steps}
    if figures is not None:
        last = figures.steps[-1] if figures.steps else {}
        said["figures"] = last
        card: dict[str, Any] = {
            "stage": name,
            "seed": run.config.seed,
            **run.config.held_out(name).to_card(),
            "figures": last,
        }
        found = best.best_of(folder)
        if found is not None:
            said["best"] = {"step": found.step, "validation": found.score}
            own = figures.steps[: found.step][-1:]  # those of the step that made it
            card |= {"figures": own[0] if own else {}, **said["best"]}
            checkpoint.load_actor(learner, found.actor)
            run.tell(f"{name}: the best is of step {found.step}, validation {found.score:.3g}")
        export(learner, card, run.folder / "policy")
        _write(folder / DONE, said)
    run.ranks.everyones(None)
    return said


def export(learner: Learner, card: Mapping[str, Any], folder: Path) -> None:
    """Put the actor where ``--policy trained`` takes it, in one go."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    learner.kind.save(learner.actor, card, new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def new_learner(run: Run, name: str) -> Learner:
    """Models as the configuration has them, and optimizers with the stage's rates. Raises `Unusable`."""
    settings, device, wanted = run.config.stage(name), run.ranks.device, run.config.model
    kind: Kind = FromCheckpoint(wanted, device) if wanted.checkpoint else Small(wanted)
    actor, critic = kind.models(run.config.seed, device)
    return Learner(
        actor,
        critic,
        kind,
        torch.optim.AdamW(actor.parameters(), lr=settings.actor_rate, weight_decay=0.0),
        torch.optim.AdamW(critic.parameters(), lr=settings.critic_rate, weight_decay=0.0),
    )


def begin(run: Run, name: str, learner: Learner) -> None:
    """Have a stage begin where the last one before it ended; optimizers begin anew. A critic that was never trained
    begins as the actor. Raises `RunFailed` where a stage that the configuration names was left out."""
    actor = actor_before(run, name)
    if actor is None:
        return
    checkpoint.load_actor(learner, actor)
    if _stage_before(run, name) in ("value", "agentic", "live"):
        checkpoint.load_critic(learner, actor.parent)
    else:
        checkpoint.begin_critic(learner)


def actor_before(run: Run, name: str) -> Path | None:
    """The folder of the actor that the last stage before this one ended with: its best one where it was validated. None
    where the configuration names none before. Raises `RunFailed` where that one is not done."""
    before = _stage_before(run, name)
    if before is None:
        return None
    folder = run.folder / before
    if not (folder / DONE).is_file():
        raise RunFailed(
            f"{name} begins where {before} ends, which is not done in {run.folder}; do it first, or leave it out "
            "of `stages`"
        )
    found = best.best_of(folder)
    if found is not None:
        return found.actor
    return checkpoint.path_of(folder, checkpoint.steps_in(folder)[-1]) / "actor"


def _stage_before(run: Run, name: str) -> str | None:
    """The last one that the configuration names before this one."""
    before = [s for s in STAGES[: STAGES.index(name)] if s in run.config.stages]
    return before[-1] if before else None


def _same_config(run: Run) -> None:
    """Write the configuration, or see that it is the one the folder was begun with."""
    path, now = run.folder / CONFIG, json.loads(json.dumps(run.config.to_json()))
    if path.is_file():
        then = _read(path)
        differs = [name for name in now if name in then and _unlike(then[name], now[name])]
        begun = [name for name in differs if name not in _may_change(run.folder)]
        if begun:
            raise RunFailed(
                f"{run.folder} is of a run with another {', '.join(begun)}; give another --out, or the configuration "
                f"that it was begun with ({path})"
            )
        if differs and run.ranks.rank == 0:
            with (run.folder / HISTORY).open("a", encoding="utf-8") as file:
                file.write(json.dumps(then, sort_keys=True) + "\n")
    if run.ranks.rank == 0:
        _write(path, now)
    run.ranks.everyones(None)


def _may_change(folder: Path) -> set[str]:
    """What of a configuration may differ from the one that the folder was begun with: nothing that a finished stage
    went by. A stage that alarms stopped goes on otherwise than before, or it would be stopped again."""
    return {"alarms", "stages", *(n for n in STAGES if not (folder / n / DONE).is_file())}


def _unlike(then: Any, now: Any) -> bool:
    """Whether values differ, but for what an older version had no name for."""
    if isinstance(then, dict) and isinstance(now, dict):
        return any(_unlike(then[name], now[name]) for name in then.keys() & now.keys())
    return bool(then != now)


@contextlib.contextmanager
def _alone(run: Run) -> Iterator[None]:
    """Have no other run write to the folder meanwhile."""
    import fcntl

    run.folder.mkdir(parents=True, exist_ok=True)
    if run.ranks.rank:
        yield
        return
    with (run.folder / "lock").open("w") as file:
        if not lock_at_once(file.fileno(), fcntl.LOCK_EX):
            raise RunFailed(
                f"another run works in {run.folder}; wait for it, or give another --out"
            )
        yield


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON, in one go: a file that a kill left half written would be taken for whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1, sort_keys=True))
    new.replace(path)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
