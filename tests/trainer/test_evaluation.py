"""Evaluation: each episode is kept as it ends, so that one that is cut goes on, and is summed up by intervals."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import toy_world
from toy_world import ToyTools, ToyVerdict, ToyWorld

from trainer import command
from trainer.policy.model import ModelSettings
from trainer.ppo.episode import Episode
from trainer.ppo.ranks import Alone
from trainer.rollout.episodes import Plan
from trainer.stages import runner
from trainer.stages.config import BadConfig, Config, StageSettings, WorldSettings
from trainer.stages.episode_book import BadBook, EpisodeBook, Line, sorted_out
from trainer.stages.evaluate import Asked, counts, how_of, search_of
from trainer.stages.runner import Run, RunFailed, run_stage
from trainer.stages.scores import scores
from trainer.stages.worlds import world_of

TABLES = Path(__file__).parent / "data" / "cpu-tables.parquet"
TINY = ModelSettings(hidden=16, layers=1, heads=1, key_heads=1, head=16, inner=32, window=1024)
EVAL = StageSettings(judgements=(1, 3), turns=6, temperature=0.0, seeds=0)
CONFIG = Config(model=TINY, stages=("eval",), eval=EVAL)
POLICIES = ("trained", "search (order)", "bayesian")
EPISODES = 4 * len(EVAL.judgements) * len(POLICIES)


@dataclass
class Counting(ToyWorld):
    """Says which environments were made. noisy: tasks of which no verdict can be had."""

    made: list[str] = field(default_factory=list)
    noisy: frozenset[str] = frozenset()

    def family(self, task: str) -> str:
        return "small" if int(task) < 200 else "large"

    def tools(self, task: str, seed: int) -> ToyTools:
        self.made.append(task)
        tools = super().tools(task, seed)
        tools.timed = True
        return Noisy(**vars(tools)) if task in self.noisy else tools


class Noisy(ToyTools):
    """A machine too busy to judge."""

    def _submit(self, name: str) -> dict[str, Any]:
        unknown: Any = None
        self.verdicts[name] = ToyVerdict("noisy", unknown, reason="the machine was busy")
        return {"ok": False, "status": "noisy", "reason": "the machine was busy"}


class Silent(Counting):
    """A world in which nothing is played."""

    def tools(self, task: str, seed: int) -> ToyTools:
        raise AssertionError("an episode was begun")


def evaluated(
    folder: Path, world: ToyWorld, asked: Asked | None = None, config: Config = CONFIG
) -> dict[str, Any]:
    run = Run(config, folder, Alone(), lambda settings, training: world, lambda text: None)
    return dict(run_stage(run, "eval", asked))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "eval" / "episodes.jsonl").open()]


def keys(found: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((line["policy"], line["budget"], line["task"]) for line in found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    evaluated(folder, Counting())
    return folder


def test_figures_say_how_policy_and_searches_fare_at_each_budget(whole: Path) -> None:
    said = json.loads((whole / "eval" / "done.json").read_text())
    assert (said["left"], said["failed"], said["part"]) == (0, 0, [1, 1])
    assert sorted(said["figures"]) == ["1", "3"]
    for budget, found in said["figures"].items():
        assert tuple(sorted(found)) == tuple(sorted(POLICIES))
        for one in found.values():
            assert one["tasks"] == 4 and one["failed"] == 0 and one["families"] == 2
            assert one["won"]["low"] <= one["won"]["value"] <= one["won"]["high"]
            assert 1.0 <= one["geomean"]["low"] <= one["geomean"]["high"] <= 1.5 + 1e-9
            assert one["judgements"] <= int(budget) and one["seconds"] >= 0.0
    searched = said["figures"]["3"]["search (order)"]
    won = searched["won"]["value"]
    assert won > 0 and searched["geomean"]["value"] == pytest.approx(1.5**won)
    assert len(lines(whole)) == len(set(keys(lines(whole)))) == EPISODES
    wanted = {
        "policy", "budget", "task", "family", "won", "speed", "reward", "judgements", "seconds", "end", "reason",
        "counts", "weights", "how",
    }  # fmt: skip
    assert all(set(line) == wanted for line in lines(whole))


class Killed(BaseException):
    """As a kill: nothing of ours catches it."""


@pytest.mark.parametrize("when", [1, 7, EPISODES])
def test_an_evaluation_that_was_cut_goes_on_and_comes_to_the_same(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    add, count = EpisodeBook.add, 0

    def cut(book: EpisodeBook, line: Line) -> None:
        nonlocal count
        count += 1
        if count >= when:
            raise Killed
        add(book, line)

    world = Counting(side_by_side=1)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(EpisodeBook, "add", cut)
        evaluated(tmp_path, world)
    assert not (tmp_path / "eval" / "done.json").exists() and world.closed
    again = Counting()
    said = evaluated(tmp_path, again)
    assert len(again.made) == EPISODES - (when - 1)
    assert keys(lines(tmp_path)) == keys(lines(whole))
    assert without_seconds(said["figures"]) == without_seconds(figures_of(whole))
    evaluated(tmp_path, Silent())  # it is done


def figures_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "eval" / "done.json").read_text())["figures"]
    return found


def without_seconds(figures: dict[str, Any]) -> dict[str, Any]:
    """What is the same another time."""
    return {
        budget: {name: {k: v for k, v in one.items() if k != "seconds"} for name, one in of.items()}
        for budget, of in figures.items()
    }


def test_lines_that_were_cut_short_are_played_again_and_others_stay_whole(
    whole: Path, tmp_path: Path
) -> None:
    kept = (whole / "eval" / "episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "eval").mkdir()
    book = tmp_path / "eval" / "episodes.jsonl"
    book.write_text(kept[0][:40] + "\n" + "".join(kept[1:-1]) + kept[-1][:40])
    world = Counting()
    assert evaluated(tmp_path, world)["left"] == 0
    assert len(world.made) == 2
    assert set(kept[1:-1]) < set(book.read_text().splitlines(keepends=True))


def test_episodes_that_the_machine_lost_are_in_no_figure_and_are_played_another_time(
    tmp_path: Path,
) -> None:
    said = evaluated(tmp_path, Counting(dies=frozenset(["128"]), noisy=frozenset(["512"])))
    found = said["figures"]["3"]["search (order)"]
    assert found["tasks"] == 2 and found["failed"] == 2
    assert said["left"] == said["failed"] > 6
    reasons = {line["reason"] for line in lines(tmp_path) if line["task"] == "128"}
    assert reasons == {"the environment of 128 died"}
    busy = [
        line["reason"] for line in lines(tmp_path) if line["task"] == "512" and not line["counts"]
    ]
    assert set(busy) == {"no verdict: the machine was busy"}
    assert not (tmp_path / "eval" / "done.json").exists()
    assert json.loads((tmp_path / "eval" / "figures.json").read_text())["left"] == said["left"]
    world = Counting()
    again = evaluated(tmp_path, world)
    assert len(world.made) == said["left"] and {"128", "512"} == set(world.made)
    assert again["failed"] == again["left"] == 0
    assert again["figures"]["3"]["search (order)"]["tasks"] == 4
    assert (tmp_path / "eval" / "done.json").is_file()


def test_what_says_nothing_of_the_policy_does_not_count() -> None:
    assert counts(Episode((), -1.0, "answered", turns=1))
    assert counts(Episode((), None, "context", turns=0))  # the task fits no window of its
    assert not counts(Episode((), None, "context", turns=2))
    assert not counts(Episode((), None, "turns", turns=2))
    assert not counts(Episode((), 1.0, "infrastructure", turns=2))


def test_parts_that_were_played_elsewhere_are_put_together(whole: Path, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        folder, world = tmp_path / str(number), Counting()
        said = evaluated(folder, world, Asked(part=(number, 3)))
        assert said["left"] == 0 and said["part"] == (number, 3)
        done = folder / "eval" / f"done-{number}-of-3.json"
        assert done.is_file() and not (folder / "eval" / "done.json").exists()
        assert evaluated(folder, Silent(), Asked(part=(number, 3)))["left"] == 0
    parts = [(tmp_path / str(n) / "eval" / "episodes.jsonl").read_text() for n in (1, 2, 3)]
    (tmp_path / "all" / "eval").mkdir(parents=True)
    (tmp_path / "all" / "eval" / "episodes.jsonl").write_text("".join(parts))
    said = evaluated(tmp_path / "all", Silent())
    assert said["left"] == 0 and keys(lines(tmp_path / "all")) == keys(lines(whole))
    assert without_seconds(said["figures"]) == without_seconds(figures_of(whole))


def test_no_episode_begins_once_the_time_is_up(tmp_path: Path) -> None:
    said = evaluated(tmp_path, Silent(), Asked(limit_s=0.0))
    assert said["left"] == EPISODES and said["failed"] == 0
    assert said["figures"]["1"]["trained"] == {"tasks": 0, "failed": 0}
    assert not (tmp_path / "eval" / "done.json").exists()


def test_searches_play_side_by_side_where_the_world_does(tmp_path: Path) -> None:
    two = threading.Barrier(2)

    class Crowded(Counting):
        def tools(self, task: str, seed: int) -> ToyTools:
            two.wait(60.0)
            return super().tools(task, seed)

    assert evaluated(tmp_path, Crowded(side_by_side=2))["left"] == 0


def test_a_folder_with_weights_is_evaluated_without_the_stages_before(tmp_path: Path) -> None:
    config = replace(CONFIG, stages=("pretrain", "eval"))
    with pytest.raises(RunFailed, match="pretrain ends, which is not done"):
        evaluated(tmp_path / "none", Silent(), config=config)
    run = Run(replace(CONFIG, seed=7), tmp_path, Alone(), world_of)
    folders = [tmp_path / name for name in ("one", "other")]
    for seed, folder in enumerate(folders):
        run = replace(run, config=replace(CONFIG, seed=seed))
        runner.export(runner.new_learner(run, "eval"), {}, folder)
    out, one = tmp_path / "out", Asked(folders[0])
    world = Counting(dies=frozenset(["128"]))
    said = evaluated(out, world, one, config)
    spoke = {line["weights"] for line in lines(out) if line["policy"] == "trained"}
    assert spoke == {said["weights"]} and len(said["weights"]) == 16
    assert {line["weights"] for line in lines(out) if line["policy"] != "trained"} == {""}
    with pytest.raises(RunFailed, match=r"line \d+ is of the weights .* another policy was"):
        evaluated(out, Counting(), Asked(folders[1]), config)
    assert evaluated(out, Counting(), one, config)["left"] == 0
    assert evaluated(out, Silent(), one, config)["left"] == 0
    with pytest.raises(RunFailed, match="another policy was evaluated there; name another --out"):
        evaluated(out, Silent(), Asked(folders[1]), config)


def test_searches_are_those_that_are_served_but_for_their_budget(tmp_path: Path) -> None:
    plan = Plan("64", "0", 12)
    order, bayesian = search_of("search (order)", plan), search_of("bayesian", plan)
    assert (order.name, order.modelled, order.judgements) == ("search", False, 12)
    assert (bayesian.name, bayesian.modelled, bayesian.judgements) == ("bayesian", True, 12)
    few = replace(CONFIG, eval=replace(EVAL, turns=2, judgements=(3,), against=("order",)))
    said = evaluated(tmp_path, Counting(), config=few)
    found = said["figures"]["3"]
    assert sorted(found) == ["search (order)", "trained"]
    assert found["search (order)"]["judgements"] > 1  # the policy's turns do not bind it


def test_the_ablation_without_a_loop_has_one_answer_a_task_judged(tmp_path: Path) -> None:
    config = replace(CONFIG, eval=replace(EVAL, single=True))
    evaluated(tmp_path, Counting(), config=config)
    assert len(lines(tmp_path)) == EPISODES
    assert all(line["reason"] == "one answer" for line in lines(tmp_path))
    assert all(line["judgements"] <= 1 for line in lines(tmp_path))


def test_episodes_of_other_settings_count_for_nothing_and_stay(tmp_path: Path) -> None:
    """What was cut goes on by other settings in the same folder, and by the first ones again."""
    evaluated(tmp_path, Counting(), Asked(part=(1, 2)))
    first = lines(tmp_path)
    assert len(first) == EPISODES / 2
    single = replace(CONFIG, eval=replace(EVAL, single=True))
    world = Counting()
    said = evaluated(tmp_path, world, Asked(part=(1, 2)), single)
    assert len(world.made) == EPISODES / 2 and said["left"] == 0
    assert lines(tmp_path)[: len(first)] == first and len(lines(tmp_path)) == EPISODES
    again = lines(tmp_path)[len(first) :]
    assert {one["reason"] for one in again} == {"one answer"} != {one["reason"] for one in first}
    for name in POLICIES:
        spent = [one["judgements"] for one in again if (one["policy"], one["budget"]) == (name, 3)]
        assert said["figures"]["3"][name]["judgements"] == pytest.approx(sum(spent) / len(spent))
    assert evaluated(tmp_path, Silent(), Asked(part=(1, 2)))["how"] != said["how"]
    warmer = replace(CONFIG, eval=replace(EVAL, temperature=0.5))
    assert evaluated(tmp_path, Counting(), Asked(part=(1, 2)), warmer)["left"] == 0
    played = lines(tmp_path)[EPISODES:]
    assert {one["policy"] for one in played} == {"trained"}  # searches have no temperature
    assert len(played) == EPISODES / 2 / len(POLICIES)


def test_a_part_that_was_done_by_other_settings_is_not_done(tmp_path: Path) -> None:
    one = Asked(part=(1, 2))
    done = tmp_path / "eval" / "done-1-of-2.json"
    evaluated(tmp_path, Counting(), one)
    assert done.is_file()
    more = replace(CONFIG, eval=replace(EVAL, judgements=(1, 3, 10)))
    said = evaluated(tmp_path, Silent(), Asked(part=(1, 2), limit_s=0.0), more)
    assert said["left"] == EPISODES / 2 / len(EVAL.judgements) and not done.exists()
    assert evaluated(tmp_path, Silent(), one)["left"] == 0 and done.is_file()


def test_episodes_that_do_not_say_how_they_were_played_count(whole: Path, tmp_path: Path) -> None:
    """They are of an older version."""
    (tmp_path / "eval").mkdir()
    older = [{k: v for k, v in one.items() if k != "how"} for one in lines(whole)]
    text = "".join(json.dumps(one) + "\n" for one in older)
    (tmp_path / "eval" / "episodes.jsonl").write_text(text)
    assert evaluated(tmp_path, Silent())["left"] == 0


@pytest.mark.parametrize(
    ("changed", "who"),
    [
        ({"eval.single": True}, "both"),
        ({"eval.turns": 7}, "policy"),
        ({"eval.turns": 300}, "both"),
        ({"eval.temperature": 0.5}, "policy"),
        ({"eval.world": WorldSettings("judge")}, "both"),
        ({"eval.world": WorldSettings(device="cuda")}, "both"),
        ({"world": WorldSettings(held_out=0.3)}, "both"),
        ({"world": WorldSettings(factory="a:b")}, "both"),
        ({"seed": 1}, "both"),
        ({"world": WorldSettings(paths=("elsewhere",), side_by_side=1)}, "nobody"),
        ({"eval.judgements": (1,)}, "nobody"),
        ({"eval.seeds": 3}, "nobody"),
        ({"eval.against": ("order",)}, "nobody"),
    ],
)
def test_settings_that_change_an_episode_change_what_it_is_kept_as(
    changed: dict[str, Any], who: str
) -> None:
    of_eval = {k.removeprefix("eval."): v for k, v in changed.items() if k.startswith("eval.")}
    of_run = {k: v for k, v in changed.items() if not k.startswith("eval.")}
    other = replace(CONFIG, eval=replace(EVAL, **of_eval), **of_run)
    for name in ("trained", "search (order)"):
        differs = how_of(name, other) != how_of(name, CONFIG)
        assert differs == (who == "both" or (who == "policy" and name == "trained"))


def test_on_tables_the_arena_follows_when_all_was_played(tmp_path: Path) -> None:
    settings = replace(EVAL, judgements=(1,), seeds=1, rivals=("order",), against=("order",))
    config = replace(CONFIG, eval=settings, world=WorldSettings(paths=(str(TABLES),)))
    run = Run(config, tmp_path, Alone(), world_of, lambda text: None)
    assert "arena" not in run_stage(run, "eval", Asked(part=(1, 2)))["figures"]
    found = run_stage(run, "eval")["figures"]
    assert sorted(found["arena"]) == ["order", "trained"]
    assert found["1"]["search (order)"]["tasks"] == found["arena"]["order"]["tables"]
    assert {line["family"] for line in lines(tmp_path)} > set() and len(lines(tmp_path)) > 2


def test_a_world_in_which_there_is_nothing_to_play_is_refused(tmp_path: Path) -> None:
    every = WorldSettings(paths=(str(TABLES),), held_out=1.0)
    for name, world, settings, said in (
        ("none", replace(every, held_out=0.0), EVAL, "holds no task out"),
        ("arena", every, replace(EVAL, seeds=1), "none to learn from; give .eval. seeds = 0"),
    ):
        config = replace(CONFIG, eval=settings, world=world)
        run = Run(config, tmp_path / name, Alone(), world_of, lambda text: None)
        with pytest.raises(BadConfig, match=said):
            run_stage(run, "eval")


def line(task: str, **changes: Any) -> Line:
    made = Line(
        "trained", 3, task, task[0], True, 2.0, 3.0, 2.0, 10.0, "answered", "promoted", True, "w"
    )
    return replace(made, **changes)


def test_what_is_not_promoted_counts_as_it_was_and_families_are_drawn_as_a_whole() -> None:
    of = [line("a1"), line("a2"), line("b1", won=False, speed=9.0, reward=1.0), line("b2", speed=0)]
    found = scores(of, 5)
    assert found["tasks"] == 4 and found["failed"] == 5 and found["families"] == 2
    assert found["won"] == {"value": 0.75, "low": 0.5, "high": 1.0}
    assert found["geomean"]["value"] == pytest.approx(2.0**0.5)
    assert found["geomean"]["low"] == pytest.approx(1.0)
    assert found["geomean"]["high"] == pytest.approx(2.0)
    assert (found["reward"], found["judgements"], found["seconds"]) == (2.5, 2.0, 10.0)
    assert "reward" not in scores([line("a", reward=None)], 0)


def test_of_an_episode_that_is_there_twice_the_first_that_counts_is_taken() -> None:
    lost = line("a", counts=False, reward=None)
    first = line("a", reward=1.0)
    counted, failed = sorted_out([lost, first, line("a"), line("b", counts=False)])
    assert counted == {("trained", 3, "a"): first} and failed == {("trained", 3, "b")}


def test_what_is_no_episode_in_the_file_is_said_with_its_line(tmp_path: Path) -> None:
    book = EpisodeBook(tmp_path / "eval" / "episodes.jsonl")
    assert book.lines() == []
    book.add(line("a"))
    assert book.lines("w") == [line("a")]
    with pytest.raises(BadBook, match="line 1 is of the weights w, and these are none"):
        book.lines()
    for text in ('{"policy": "trained"}', "[3]"):
        path = tmp_path / "bad.jsonl"
        path.write_text(json.dumps({**vars(line("a")), "later": 1}) + f"\n{text}\n")
        with pytest.raises(BadBook, match=r"bad\.jsonl, line 2 is no episode"):
            EpisodeBook(path).lines("w")


TOML = f"""
threads = 1
stages = ["eval"]
{toy_world.TOML}[eval]
judgements = [1]
turns = 6
seeds = 0
"""


def test_the_command_says_what_is_left_and_takes_options_for_eval_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    words = [str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]
    assert command.main(["eval", *words, "--time-limit", "0"]) == 1
    told = capsys.readouterr().out
    assert "eval: 12 episodes are left; give the same command again" in told
    assert "what plays has learnt nothing" in told
    assert command.main(["eval", *words, "--part", "2/4"]) == 0
    assert command.main(["eval", *words]) == 0
    assert "eval: done: " in capsys.readouterr().out and len(lines(tmp_path / "out")) == 12
    assert command.main(["run", *words]) == 0
    nowhere = ["--policy", str(tmp_path / "nowhere")]
    assert command.main(["eval", *words, *nowhere]) == command.USAGE
    assert "nowhere holds no weights" in capsys.readouterr().err
    for wrong in (["run", *words, "--part", "1/2"], ["eval", *words, "--part", "5/4"]):
        with pytest.raises(SystemExit):
            command.main(wrong)


def test_the_gaussian_process_is_not_replaced_unseen_by_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda_agent_backend.agent.policies import registry

    (tmp_path / "run.toml").write_text(TOML)
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    words = ["eval", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]
    assert command.main(words) == command.USAGE
    assert "needs sklearn" in capsys.readouterr().err
