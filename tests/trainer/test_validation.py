"""Validation: a stage ends with the actor that was best on families that nothing is trained on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_world import ToyWorld
from world_kit import FILE, measured

from trainer.environment.session import Session
from trainer.health import journal
from trainer.health.alarms import Limits
from trainer.health.journal import read
from trainer.policy.model import ModelSettings
from trainer.ppo.episode import Episode
from trainer.ppo.ranks import Alone
from trainer.rollout.episodes import Play, Played, roll_out
from trainer.rollout.held_out import HeldOut, to_validate
from trainer.rollout.table_world import TableWorld
from trainer.rollout.world import WorldFailed, family_in, validation_tasks_of
from trainer.stages import best, checkpoint, runner, steps
from trainer.stages import config as configs
from trainer.stages.best import Best, Score, best_of
from trainer.stages.config import BadConfig, Config, StageSettings, WorldSettings
from trainer.stages.learner import Learner
from trainer.stages.runner import Run, RunFailed, run_stage
from trainer.stages.steps import Stage
from trainer.stages.validation import Validation, worth
from trainer.stages.worlds import world_of

TINY = ModelSettings(hidden=16, layers=1, heads=1, key_heads=1, head=16, inner=32, window=1024)
SHORT = StageSettings(
    steps=6, episodes=8, attempts=2, judgements=(1, 3), every=1, turns=6, validate=(1, 3)
)
CONFIG = Config(
    stages=("warmup", "agentic", "eval"),
    model=TINY,
    world=WorldSettings(validated=0.2),
    alarms=Limits(window=2, failed=0.5),
    warmup=SHORT,
    agentic=replace(SHORT, validate=()),
)
NOT_VALIDATED = replace(CONFIG, world=WorldSettings(), warmup=replace(SHORT, validate=()))
WORLD = ToyWorld(validation_tasks=("1024", "2048"))
ACTOR = "actor/model.safetensors"


def run_of(folder: Path, config: Config = CONFIG, world: Any = WORLD, **more: Any) -> Run:
    said: list[str] = []
    run = Run(config, folder, Alone(), lambda settings, training=True: world, said.append, **more)
    object.__setattr__(run, "said", said)
    return run


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_file(folder / "model.safetensors")


def mark_of(actor: Any) -> int:
    """The step that a model is of, see `scripted`; 0 for one that no step was done with."""
    first = float(actor.lm_head.weight.detach()[0, 0])
    return int(first) if first >= 1 else 0


def card(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "policy" / "policy.json").read_text())
    return found


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have steps mark the actor and the critic with their number, and fail from one on; have an actor's score be that
    of its mark."""

    def use(scores: Sequence[float], failing: int = 1000) -> None:
        def step(stage: Stage, number: int) -> dict[str, float]:
            stage.learner.actor.lm_head.weight.data.fill_(number + 1)
            stage.learner.critic.score.weight.data.fill_(number + 1)
            return {"failed": float(number >= failing), "reward": float(number), "judgements": 1.0}

        def score(self: Validation) -> Score | None:
            mark = mark_of(self.stage.learner.actor)
            return Score(scores[mark], self.name) if self.plans else None

        monkeypatch.setitem(runner.STEPS, "warmup", step)
        monkeypatch.setattr(Validation, "score", score)

    return use


def best_step(folder: Path) -> int:
    found = best_of(folder / "warmup")
    assert found is not None
    return found.step


# Which families.


def test_every_part_leaves_an_even_share_of_its_rest_to_validate_on() -> None:
    names = [f"family {n}" for n in range(2000)]
    chosen = to_validate(names, 0.25)
    assert 0.21 < len(chosen) / len(names) < 0.29
    for part in range(10):
        away = HeldOut(0.1, part).families(names)
        left = [name for name in names if name not in away]
        kept = to_validate(left, 0.25)
        assert not kept & away and 0.19 < len(kept) / len(left) < 0.31
        assert kept == chosen - away  # the same families beside each part
    assert to_validate(names, 0.1) < chosen


def test_which_families_validate_hangs_on_their_names_alone() -> None:
    names = [f"family {n}" for n in range(200)]
    chosen = to_validate(names, 0.2)
    for some in (names[::2], names[::-1], [*names[:60], "another"]):
        assert to_validate(some, 0.2) - {"another"} == chosen & set(some)
    assert not to_validate(names, 0.0) and not to_validate([], 0.2)
    assert len(to_validate(["one", "two", "one"], 1e-9)) == 1


@pytest.mark.parametrize("kind", ["tables", "judge"])
def test_a_worlds_tasks_are_to_train_on_to_validate_on_or_held_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.rollout.judge_world.JudgeWorld.open", lambda world: None)
    settings = WorldSettings(kind, paths=(str(FILE),), held_out=0.2, validated=0.2)  # type: ignore[arg-type]
    world, plain = world_of(settings), world_of(replace(settings, validated=0.0))
    kept = validation_tasks_of(world)
    sides = [{family_in(world, t) for t in ids} for ids in (world.tasks, kept, world.test_tasks)]
    assert all(sides) and sum(map(len, sides)) == len(set.union(*sides))
    assert world.test_tasks == plain.test_tasks and not validation_tasks_of(plain)
    assert {*world.tasks, *kept} == set(plain.tasks)
    only_played = world_of(settings, training=False)
    assert only_played.tasks == plain.tasks and not validation_tasks_of(only_played)
    assert validation_tasks_of(ToyWorld()) == ()


def test_a_world_that_cannot_train_and_validate_is_refused() -> None:
    for kind in ("tables", "judge"):
        settings = WorldSettings(kind, paths=(str(FILE),), validated=0.9999)  # type: ignore[arg-type]
        with pytest.raises(BadConfig, match=r"to validate on 100%|validated = 0.9999"):
            world_of(settings)


def test_look_and_demonstrations_say_nothing_of_what_won_where_is_validated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TableWorld(measured(), HeldOut(0.2), 4, validated=0.4)
    trained = {table.id for table in world.tables(world.tasks)}
    digests = {table.parsed.digest for table in world.tables(world.tasks)}
    told = [
        near.task.digest
        for task in (*world.tasks, *world.validation_tasks, *world.test_tasks)
        for near in world.tools(task, 0).neighbours
    ]
    assert told and set(told) <= digests
    learnt: list[str] = []

    class Seen:
        def __init__(self, make: Any, tables: Sequence[Any], seed: int) -> None:
            learnt.extend(table.id for table in tables)

        def policy(self, plan: Any) -> Any: ...

    monkeypatch.setattr(steps, "Tutors", Seen)
    run = run_of(Path("unused"))
    steps.rival_of("portfolio", Stage("warmup", CONFIG, world, learner_of(run), Alone()))
    assert set(learnt) == trained and not trained & set(world.validation_tasks)


def test_a_task_to_validate_on_may_be_played_by_its_name() -> None:
    assert Session(WORLD).start("1024")
    with pytest.raises(ValueError, match="no task '4096'"):
        Session(WORLD).start("4096")


# What an actor comes to.


def learner_of(run: Run) -> Learner:
    return runner.new_learner(run, "warmup")


def test_an_episode_is_worth_its_share_of_the_best_known_speed_up() -> None:
    def one(reward: float | None, speed: float = 0.0, known: float = 0.0) -> float:
        return worth(Played(Episode((), reward, "answered"), (), speed, best_known=known))

    assert one(3.0, 1.5, 2.0) == 0.75 and one(1.0, 0.8, 1.6) == 0.5 and one(3.0, 2.1, 2.0) == 1.0
    assert one(-1.0, 1.5, 2.0) == one(None) == one(1.0, 0.0, 2.0) == 0.0
    assert one(3.0, 1.5) == 1.0 and one(1.0, 9.0) == pytest.approx(1 / 3)


def test_the_score_is_the_mean_over_tasks_and_budgets_of_greedy_episodes(tmp_path: Path) -> None:
    world = TableWorld(measured(), HeldOut(0.2), 4, validated=0.3)
    learner = learner_of(run_of(tmp_path))
    config = replace(CONFIG, agentic=replace(SHORT, temperature=1.0, turns=30))
    found = Validation(Stage("agentic", config, world, learner, Alone()))
    assert {(p.task, p.judgements) for p in found.plans} == {
        (task, budget) for task in world.validation_tasks for budget in (1, 3)
    }
    speaker = learner.kind.speaker(learner.actor, 0.0)
    played = roll_out(found.plans, world, speaker, Play(30))
    assert all(one.best_known == world.tables([one.episode.task])[0].best for one in played)
    score = found.score()
    assert score is not None and score == found.score()
    assert score.value == pytest.approx(sum(map(worth, played)) / len(found.plans))
    assert found.play.single is False
    assert Validation(Stage("warmup", config, world, learner, Alone())).play.single is True


def test_what_is_lost_to_infrastructure_says_nothing_of_the_actor(tmp_path: Path) -> None:
    def of(*dies: str) -> Score | None:
        world = replace(WORLD, dies=frozenset(dies))
        return Validation(Stage("warmup", CONFIG, world, learner, Alone())).score()

    learner = learner_of(run_of(tmp_path))
    assert of(*WORLD.validation_tasks) is None
    one = replace(WORLD, validation_tasks=("1024",))
    alone = Validation(Stage("warmup", CONFIG, one, learner, Alone())).score()
    lost = of("2048")
    assert alone is not None and lost is not None and lost.value == alone.value
    assert alone.played != lost.played


class Meeting:
    """Where two threads exchange what `Ranks.everyones` is given."""

    def __init__(self) -> None:
        self.barrier, self.given = threading.Barrier(2, timeout=60), [None, None]

    def of(self, rank: int) -> Alone:
        meeting = self

        class One(Alone):
            def everyones(self, value: Any) -> list[Any]:
                meeting.given[self.rank] = value
                meeting.barrier.wait()
                return list(meeting.given)

        found = One()
        found.rank, found.world = rank, 2
        return found


def in_two(learners: Sequence[Learner], worlds: Sequence[Any]) -> list[Any]:
    """What each of two processes finds, or raises."""
    meeting, found = Meeting(), [None, None]

    def one(rank: int) -> None:
        ours = Stage("warmup", CONFIG, worlds[rank], learners[rank], meeting.of(rank))
        try:
            found[rank] = Validation(ours).score()  # type: ignore[call-overload]
        except Exception as error:
            found[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_processes_share_the_tasks_and_have_one_score(tmp_path: Path) -> None:
    learners = [learner_of(run_of(tmp_path)) for _ in (0, 1)]
    alone = Validation(Stage("warmup", CONFIG, WORLD, learners[0], Alone())).score()
    played = [Counting(validation_tasks=WORLD.validation_tasks) for _ in (0, 1)]
    assert in_two(learners, played) == [alone, alone]
    assert [world.played for world in played] == [2, 2]  # of two tasks at two budgets


class Counting(ToyWorld):
    played = 0

    def tools(self, task: str, seed: int) -> Any:
        self.played += 1
        return super().tools(task, seed)


class Broken(ToyWorld):
    def tools(self, task: str, seed: int) -> Any:
        raise ZeroDivisionError("a bug")


def test_a_process_that_fails_leaves_none_waiting(tmp_path: Path) -> None:
    learners = [learner_of(run_of(tmp_path)) for _ in (0, 1)]
    worlds = [WORLD, Broken(validation_tasks=WORLD.validation_tasks)]
    first, second = in_two(learners, worlds)
    assert isinstance(first, WorldFailed) and "process 1" in str(first) and "a bug" in str(first)
    assert isinstance(second, ZeroDivisionError)


# What a stage ends with.


def test_a_stage_whose_later_steps_get_worse_ends_with_the_earlier_actor(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.1, 0.3, 0.6, 0.5, 0.6, 0.2, 0.1])
    config = replace(CONFIG, alarms=Limits(window=1))
    run = run_of(tmp_path, config)
    done = run_stage(run, "warmup")
    stage = tmp_path / "warmup"
    assert done["best"] == {"step": 2, "validation": 0.6} and done["figures"]["reward"] == 5.0
    assert 2 not in checkpoint.steps_in(stage) == [4, 5, 6]  # pruned, and yet kept
    exported = weights_in(tmp_path / "policy")
    assert bool((exported["lm_head.weight"] == 2.0).all())
    said = card(tmp_path)
    assert (said["step"], said["validation"], said["figures"]["reward"]) == (2, 0.6, 1.0)
    found = best_of(stage)
    assert found == Best(stage / "best" / "step-000002" / "actor", 2, 0.6)
    assert runner.actor_before(run, "agentic") == found.actor
    learner = runner.new_learner(run, "agentic")
    runner.begin(run, "agentic", learner)
    assert mark_of(learner.actor) == 2
    values = [line.get("validation") for line in read(stage / "figures.jsonl")]
    assert values == [0.3, 0.6, 0.5, 0.6, 0.2, 0.1]
    told = run.said  # type: ignore[attr-defined]
    assert told[0] == "warmup step 0: validation 0.1"
    assert told[2].startswith("warmup step 2:") and told[2].endswith("validation 0.6")
    assert not list((stage / "best").glob("*/optimizer*"))


def test_tensorboard_has_the_score_of_each_checkpoint_and_of_the_beginning(
    tmp_path: Path, scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Board:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            if name == "validation":
                shown.append((step, value))

        def close(self) -> None: ...

    shown: list[tuple[int, float]] = []
    monkeypatch.setattr(journal, "_board", lambda folder, steps: Board())
    scripted([0.1, 0.3, 0.6, 0.5, 0.6, 0.2, 0.1])
    run_stage(run_of(tmp_path, replace(CONFIG, warmup=replace(SHORT, every=4))), "warmup")
    assert shown == [(0, 0.1), (4, 0.6), (6, 0.1)]


def test_the_next_stage_has_the_critic_of_the_best_actor(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.1, 0.3, 0.9, 0.5, 0.6, 0.2, 0.1])
    runner.STEPS["agentic"], before = runner.STEPS["warmup"], runner.STEPS["agentic"]
    try:
        own = replace(CONFIG, stages=("agentic", "live"), agentic=SHORT, warmup=CONFIG.agentic)
        run_stage(run_of(tmp_path, own), "agentic")
    finally:
        runner.STEPS["agentic"] = before
    learner = runner.new_learner(run_of(tmp_path, own), "live")
    runner.begin(run_of(tmp_path, own), "live", learner)
    assert float(learner.critic.score.weight.detach()[0, 0]) == mark_of(learner.actor) == 2


def test_what_a_stage_begins_with_may_be_its_best(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.5] * 7)
    done = run_stage(run_of(tmp_path), "warmup")
    assert done["best"]["step"] == 0 and card(tmp_path)["figures"] == {}
    fresh = learner_of(run_of(tmp_path)).actor.state_dict()
    assert torch.equal(weights_in(tmp_path / "policy")["lm_head.weight"], fresh["lm_head.weight"])


def test_where_no_actor_gets_anything_right_the_last_one_counts(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.0] * 7)
    done = run_stage(run_of(tmp_path), "warmup")
    assert "best" not in done and "step" not in card(tmp_path)
    assert bool((weights_in(tmp_path / "policy")["lm_head.weight"] == 6.0).all())


def test_real_steps_are_validated_and_learn_the_same(tmp_path: Path) -> None:
    """Episodes and updates are those of a stage that does not validate: only the figure is new."""
    config = replace(CONFIG, warmup=replace(SHORT, every=2, steps=3))
    run_stage(run_of(tmp_path / "with", config), "warmup")
    run_stage(run_of(tmp_path / "without", NOT_VALIDATED_SHORT), "warmup")
    with_it, without = (
        [
            {name: value for name, value in line.items() if name != "seconds"}
            for line in read(tmp_path / side / "warmup" / "figures.jsonl")
        ]
        for side in ("with", "without")
    )
    # At each checkpoint, and at the end.
    assert [n for n, line in enumerate(with_it, 1) if "validation" in line] == [2, 3]
    assert [{n: v for n, v in line.items() if n != "validation"} for line in with_it] == without
    last = [checkpoint.path_of(tmp_path / s / "warmup", 3) / ACTOR for s in ("with", "without")]
    assert last[0].read_bytes() == last[1].read_bytes()


NOT_VALIDATED_SHORT = replace(NOT_VALIDATED, warmup=replace(NOT_VALIDATED.warmup, every=2, steps=3))


def test_without_validation_a_stage_leaves_what_it_left_before(tmp_path: Path) -> None:
    for name, config, world in (
        ("off", NOT_VALIDATED_SHORT, WORLD),
        ("none", replace(NOT_VALIDATED_SHORT, warmup=replace(SHORT, every=2, steps=3)), ToyWorld()),
    ):
        run = run_of(tmp_path / name, config, world)
        done = run_stage(run, "warmup")
        stage = tmp_path / name / "warmup"
        assert set(done) == {"stage", "steps", "figures"} and not (stage / "best").exists()
        assert not any("validation" in line for line in read(stage / "figures.jsonl"))
        state = json.loads((checkpoint.path_of(stage, 3) / "state.json").read_text())
        assert state == {"stage": "warmup", "seed": 0, "step": 3}
        exported = tmp_path / name / "policy" / "model.safetensors"
        assert exported.read_bytes() == (checkpoint.path_of(stage, 3) / ACTOR).read_bytes()
        assert not {"step", "validation"} & set(card(tmp_path / name))
        assert runner.actor_before(run, "agentic") == checkpoint.path_of(stage, 3) / "actor"
        told = run.said  # type: ignore[attr-defined]
        assert any("no tasks to validate on" in line for line in told) is (name == "none")


def test_a_stage_that_ends_with_its_judgements_is_validated_there(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.1, 0.3, 0.2, 0.7, 0.9, 0.9, 0.9])
    spent = replace(CONFIG, warmup=replace(SHORT, every=2, most_judgements=3 * SHORT.episodes))
    done = run_stage(run_of(tmp_path, spent), "warmup")
    assert len(read(tmp_path / "warmup" / "figures.jsonl")) == 3
    assert done["best"]["validation"] == 0.7 and card(tmp_path)["figures"]["validation"] == 0.7
    assert bool((weights_in(tmp_path / "policy")["lm_head.weight"] == 3.0).all())


# Kills, roll-backs, and other settings.


class Killed(BaseException):
    """As a kill: nothing of ours catches it."""


@pytest.mark.parametrize("owner", [best, checkpoint], ids=["settle", "keep_models"])
@pytest.mark.parametrize("when", [2, 3, 4])
def test_a_stage_that_was_killed_goes_on_with_the_same_best(
    tmp_path: Path, scripted: Callable[..., None], when: int, owner: Any
) -> None:
    """Killed behind a checkpoint, before its record is there, or is whole."""
    scripted([0.1, 0.3, 0.6, 0.7, 0.6, 0.2, 0.1])
    run_stage(run_of(tmp_path / "whole"), "warmup")
    name, count = ("settle" if owner is best else "_settle"), 0
    real = getattr(owner, name)

    def killing(*given: Any) -> None:
        nonlocal count
        count += owner is best or "best" in given[0].parts
        if count == when:
            count += 1000
            raise Killed
        real(*given)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, killing)
        run_stage(run_of(tmp_path / "killed"), "warmup")
    before = best_of(tmp_path / "killed" / "warmup")
    assert before is None or before.step < 3
    run_stage(run_of(tmp_path / "killed"), "warmup")
    assert best_step(tmp_path / "killed") == 3
    for file in ("policy/model.safetensors", "policy/policy.json", "warmup/done.json"):
        one, other = ((tmp_path / side / file).read_bytes() for side in ("whole", "killed"))
        assert without_seconds(one) == without_seconds(other)
    records = [
        sorted(p.name for p in (tmp_path / side / "warmup" / "best").iterdir())
        for side in ("whole", "killed")
    ]
    assert records[0] == records[1]


def without_seconds(content: bytes) -> Any:
    try:
        found = json.loads(content)
    except ValueError:
        return content
    found["figures"].pop("seconds", None)
    return found


def test_a_checkpoint_that_is_removed_by_hand_is_no_best(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    """As is said of one that cannot be read; what a kill left half is removed with it."""
    scripted([0.1, 0.3, 0.2, 0.2, 0.9, 0.2, 0.1], failing=4)
    with pytest.raises(RunFailed, match="step-000004"):
        run_stage(run_of(tmp_path), "warmup")
    stage = tmp_path / "warmup"
    assert best_step(tmp_path) == 4
    checkpoint.remove(checkpoint.path_of(stage, 4))
    for half in ("step-000009.new", "step-000008"):
        (stage / "best" / half / "actor").mkdir(parents=True)
    scripted([0.1, 0.3, 0.2, 0.2, 0.25, 0.2, 0.1])
    done = run_stage(run_of(tmp_path, resume_collapsed=True), "warmup")
    assert done["best"]["step"] == 1
    assert [path.name for path in (stage / "best").iterdir()] == ["step-000001"]


def test_a_roll_back_drops_a_later_best_and_brings_the_one_before_it_back(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.1, 0.8, 0.2, 0.3, 0.4, 0.5, 0.9, 0.95, 0.1], failing=6)
    config = replace(CONFIG, warmup=replace(SHORT, steps=8))
    stage = tmp_path / "warmup"
    with pytest.raises(RunFailed, match=r"stopped at step 8.*step-000006"):
        run_stage(run_of(tmp_path, config), "warmup")
    assert checkpoint.steps_in(stage)[-1] == best_step(tmp_path) == 6
    shutdown = replace(config, alarms=replace(config.alarms, window=5, failed=0.1))
    assert checkpoint.steps_in(stage / "best") == [1, 6]  # 1 is older than all checkpoints
    scripted([0.1, 0.8, 0.2, 0.3, 0.4, 0.5, 0.9, 0.95, 0.1], failing=0)
    with pytest.raises(RunFailed, match=r"stopped at step 7.*oldest checkpoint, .*step-000004"):
        run_stage(run_of(tmp_path, shutdown, resume_collapsed=True), "warmup")
    assert checkpoint.steps_in(stage) == [4] and best_step(tmp_path) == 1
    found = best_of(stage)
    assert found is not None and found.score == 0.8
    assert bool((weights_in(found.actor)["lm_head.weight"] == 1.0).all())


def test_records_that_no_roll_back_brings_back_are_dropped(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.1 * n for n in range(7)])
    run_stage(run_of(tmp_path), "warmup")
    kept = checkpoint.steps_in(tmp_path / "warmup")
    assert kept == checkpoint.steps_in(tmp_path / "warmup" / "best") == [3, 4, 5, 6]


def test_a_policy_that_is_not_a_number_is_an_alarm_before_it_is_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(stage: Stage, number: int) -> Mapping[str, float]:
        if number == 2:
            stage.learner.actor.lm_head.weight.data.fill_(torch.nan)
        return {"loss": torch.nan if number == 2 else 1.0}

    def score(self: Validation) -> Score:
        played.append(bool(self.stage.learner.actor.lm_head.weight.isfinite().all()))
        return Score(0.5, self.name)

    played: list[bool] = []
    monkeypatch.setitem(runner.STEPS, "warmup", step)
    monkeypatch.setattr(Validation, "score", score)
    with pytest.raises(RunFailed, match=r"loss is not a number.*step-000002"):
        run_stage(run_of(tmp_path), "warmup")
    assert played == [True, True, True] and best_step(tmp_path) == 0


@pytest.mark.parametrize("validate", [(), (2,)])
def test_scores_at_other_budgets_are_not_compared(
    tmp_path: Path, scripted: Callable[..., None], validate: tuple[int, ...]
) -> None:
    scripted([0.1, 0.7, 0.2, 0.9, 0.4, 0.3, 0.2], failing=3)
    with pytest.raises(RunFailed):
        run_stage(run_of(tmp_path), "warmup")
    assert best_step(tmp_path) == 3 and checkpoint.steps_in(tmp_path / "warmup") == [1, 2, 3]
    scripted([0.1, 0.7, 0.2, 0.9, 0.4, 0.3, 0.2])
    other = replace(CONFIG, warmup=replace(SHORT, validate=validate))
    done = run_stage(run_of(tmp_path, other, resume_collapsed=True), "warmup")
    assert done.get("best") == ({"step": 4, "validation": 0.4} if validate else None)
    mark = weights_in(tmp_path / "policy")["lm_head.weight"][0, 0]
    assert mark == (4.0 if validate else 6.0)


def test_a_stage_that_has_no_step_left_takes_no_score_of_other_budgets(
    tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted([0.1, 0.3, 0.7, 0.9, 0.9, 0.9, 0.9])
    spent = replace(CONFIG, warmup=replace(SHORT, most_judgements=2 * SHORT.episodes))
    stage = tmp_path / "warmup"
    for validate, ends in (((1, 3), {"step": 2, "validation": 0.7}), ((2,), None)):
        own = replace(spent, warmup=replace(spent.warmup, validate=validate))
        assert run_stage(run_of(tmp_path, own), "warmup").get("best") == ends
        (stage / "done.json").unlink()
        checkpoint.remove(checkpoint.path_of(stage, SHORT.steps))  # as of a kill before its end


def test_a_full_disk_leaves_the_best_whole(
    tmp_path: Path, scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([0.1, 0.3, 0.6, 0.5, 0.6, 0.2, 0.1])

    def full(*names: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "link", full)
        run_stage(run_of(tmp_path / "copied"), "warmup")  # a disk that has no links
        assert best_step(tmp_path / "copied") == 2
        patch.setattr(checkpoint.shutil, "copyfile", full)
        with pytest.raises(OSError, match=r"step-000000 cannot be written.*No space"):
            run_stage(run_of(tmp_path / "full"), "warmup")
    assert not list((tmp_path / "full" / "warmup" / "best").iterdir())
    run_stage(run_of(tmp_path / "full"), "warmup")
    assert best_step(tmp_path / "full") == 2


# Configurations.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agentic]\nvalidate = [1]", "[agentic] validate plays families that no stage"),
        ("[world]\nvalidated = 0.1\n[value]\nvalidate = [1]", "[value] validate is of stages"),
        ("[world]\nvalidated = 0.1\n[eval]\nvalidate = [1]", "[eval] validate is of stages"),
        ("[world]\nvalidated = 0.1\n[agentic]\nvalidate = [0]", "budgets of at least 1, each"),
        ("[world]\nvalidated = 0.1\n[agentic]\nvalidate = [3, 3]", "budgets of at least 1, each"),
        ("[world]\nvalidated = 0.1\n[agentic]\nvalidate = [1.5]", "is a list of int"),
        ("[world]\nvalidated = 1.0", "validated is 1; it is a share from 0"),
        ("[world]\nvalidated = -0.1", "validated is -0.1; it is a share from 0"),
        (
            "[agentic.world]\nvalidated = 0.1\n[agentic]\nvalidate = [1]",
            "[agentic] validate would choose by families that pretrain, warmup, rft, value trains",
        ),
        (
            "[world]\nvalidated = 0.2\n[rft.world]\nvalidated = 0.1\n[agentic]\nvalidate = [1]",
            "[agentic] validate would choose by families that rft trains",
        ),
    ],
    ids=lambda value: value if " " not in value else "",
)
def test_what_is_wrong_with_how_a_run_validates_is_said(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(BadConfig, match=said.replace("[", "\\[")):
        configs.read(tmp_path / "run.toml")


def test_a_run_that_validates_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "[world]\nvalidated = 0.1\n[rft.world]\nvalidated = 0.2\n[agentic]\nvalidate = [1, 3]\n[pretrain]\n"
        "validate = [10]\n[live.world]\nvalidated = 0.0\n"
    )
    found = configs.read(path)
    assert found.world.validated == 0.1 and found.agentic.validate == (1, 3)
    assert configs.read(
        path, ["world.validated=0.0", "agentic.validate=[]", "pretrain.validate=[]"]
    )
