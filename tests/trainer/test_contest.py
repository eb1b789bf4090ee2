"""The trained policy among the arena's rivals: it asks for the rows that its calls had judged, within its budget."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.agent.policies.trained import weights
from cuda_agent_backend.agent.policies.trained.sampler import Sampler
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import ToolCall, Turn
from trainer.arena.play import BUDGETS, NOTHING, noise_of, play
from trainer.arena.splits import judged_on, playable
from trainer.command import main
from trainer.policy.model import Size, actor_of, config_of
from trainer.rivals.protocol import NO_ROW, view_of
from trainer.rollout.demonstrations import chance_policy
from trainer.rollout.held_out import HeldOut
from trainer.stages import contest
from trainer.stages.contest import TrainedRival, _row
from trainer.world.files import read
from trainer.world.replay import Replay
from trainer.world.replay_tools import TableBench
from trainer.world.worth import best_known

TABLES = read([Path(__file__).parent / "data" / "cpu-tables.parquet"])
SPEECH = Speech()
TINY = Size(hidden=32, layers=1, heads=1, key_heads=1, head=32, inner=64, window=2048)


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """A model, in whose place a policy of chance plays that never gives up."""
    ids = SPEECH.words.ids
    actor = actor_of(config_of(TINY, len(ids), ids["<end>"], ids["<pad>"]), 0)

    def policy(speaker: Sampler, ask: Any, key: int, seed: str) -> Any:
        return chance_policy(speaker.speech, seed)

    monkeypatch.setattr(contest, "policy_of", policy)
    return Sampler(actor, SPEECH)


def test_it_asks_for_rows_of_the_table_and_for_no_more_than_its_budget(sampler: Sampler) -> None:
    asked = 0
    for table in TABLES:
        rival = TrainedRival(sampler, [table], 10)
        replay, rows = Replay(table), []
        game = rival.play(view_of(table), 0)
        try:
            row = next(game)
            while True:
                rows.append(row)
                row = game.send(NOTHING if row == NO_ROW else replay.judge(row))
        except StopIteration:
            pass
        assert len(rows) <= 10 and set(rows) <= {NO_ROW, *range(len(table.rows))}
        asked += len(set(rows) - {NO_ROW})
    assert asked > len(TABLES) / 2


def test_which_calls_have_a_row_judged() -> None:
    table = TABLES[0]
    view, name = view_of(table), table.rows[1].candidate
    schedule = json.loads(table.rows[0].schedules[0])
    assert _row(ToolCall.of("1", "profile", candidate=name), view) == 1
    assert _row(ToolCall.of("1", "submit", candidate=name), view) == 1
    assert _row(ToolCall.of("1", "submit", reason="no"), view) is None
    assert _row(ToolCall.of("1", "inspect", candidate=name), view) is None
    assert _row(ToolCall.of("1", "verify", candidate=name), view) is None, "nothing was timed"
    assert _row(ToolCall.of("1", "sketch", schedule=schedule), view) == 0
    assert _row(ToolCall.of("1", "sketch", schedule=[{"sketch": "none"}]), view) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sketch", "{"),
        ("sketch", "{}"),
        ("sketch", "[]"),
        ("sketch", '{"schedule": 3}'),
        ("sketch", '{"schedule": [{"sketch": [1]}]}'),
        ("profile", "[]"),
        ("profile", "3"),
        ("submit", '{"candidate": []}'),
        ("", "{}"),
    ],
)
def test_a_call_that_makes_no_sense_has_no_row_judged(name: str, arguments: str) -> None:
    assert _row(ToolCall("1", name, arguments), view_of(TABLES[0])) is None


class Repeats:
    """Sketches the first schedule, and profiles it for ever."""

    name = "repeats"

    def __init__(self) -> None:
        self.calls = 0

    def act(self, messages: Any, tools: Any) -> Turn:
        self.calls += 1
        last = messages[-1]
        if last["role"] != "tool":
            return Turn("", (ToolCall.of("c", "look"),))
        answer = json.loads(last["content"])
        if last["name"] == "look":
            return Turn("", (ToolCall.of("c", "sketch", schedule=answer["schedules"][0]),))
        if last["name"] == "sketch":
            self.candidate = answer["candidate"]
        return Turn("", (ToolCall.of("c", "profile", candidate=self.candidate),))


def test_what_is_asked_for_again_costs_a_judgement(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Repeats()
    monkeypatch.setattr(contest, "policy_of", lambda *_: policy)
    table = next(t for t in TABLES if all(row.works for row in t.rows))
    found = play(TrainedRival(sampler, [table], 3), table, 0, 3)
    assert len(found.judged) == 3 and len(set(found.judged)) == 1 and policy.calls == 2 + 3
    spent = table.rows[found.judged[0]].judging_s
    assert found.seconds is None or found.seconds == pytest.approx(found.judgements * spent)


class Nonsense:
    """Profiles what is no candidate, for ever."""

    name = "nonsense"

    def act(self, messages: Any, tools: Any) -> Turn:
        return Turn("", (ToolCall.of("c", "profile", candidate="none"),))


def test_what_is_no_candidate_costs_a_judgement_and_gives_nothing(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "policy_of", lambda *_: Nonsense())
    table = next(t for t in TABLES if t.best > 1)
    found = play(TrainedRival(sampler, [table], 3), table, 0, 3)
    assert found.judged == (NO_ROW,) * 3 and found.judgements is None
    assert found.at[3].slowdown == pytest.approx(max(1.0, best_known(table)))


def test_the_policy_hears_what_every_rival_hears(sampler: Sampler) -> None:
    table = next(t for t in TABLES if all(row.works for row in t.rows))
    bench = TableBench(table, noise_of(table, 4))
    replay = Replay(table, noise_of(table, 4))
    for row in (2, 0, 2):
        pairs = bench.replay.draw(row)
        assert statistics.median(b / c for b, c in pairs) == pytest.approx(replay.judge(row).speed)


def test_equal_trainings_take_turns_over_seeds(sampler: Sampler) -> None:
    asked: list[int] = []

    class Heard:
        def __init__(self, number: int) -> None:
            self.number, self.speech = number, sampler.speech

        def session(self) -> Any:
            asked.append(self.number)
            return sampler.session()

    games = contest.games_of([Heard(0), Heard(1)], TABLES[:2], 3)  # type: ignore[list-item]
    assert [game.seed for game in games] == [0, 0, 1, 1, 2, 2]
    assert asked == [n for n in (0, 1, 0) for _ in range(2 * len(BUDGETS))]


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A policy's folder, as a run leaves it."""
    ids = SPEECH.words.ids
    actor = actor_of(config_of(TINY, len(ids), ids["<end>"], ids["<pad>"]), 0)
    weights.save(actor, SPEECH, {"held_out": 0.3}, tmp_path / "policy")
    return tmp_path / "policy"


def test_the_command_plays_policies_beside_rivals_and_controls(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = str(Path(__file__).parent / "data" / "cpu-tables.parquet"), str(tmp_path / "out")
    wanted = ["contest", file, "--policy", str(trained), "--policy", str(trained), "--out", out]
    assert main([*wanted, "--seeds", "2", "--rivals", "order,nearest,ranker-shuffled"]) == 0
    found = json.loads((tmp_path / "out" / "arena.json").read_text())
    rivals = found["splits"]["held_out"]
    assert set(rivals) == {"trained", "order", "nearest", "ranker-shuffled"}
    kept_from = [{"held_out": 0.3, "held_out_part": 0}]
    assert found["policies"] == {"trainings": 2, "kept_from": kept_from}
    away = HeldOut(0.3).families([table.family for table in TABLES])
    assert rivals["trained"]["families"] == rivals["order"]["families"] <= len(away)
    assert "Families that the policy was not trained on" in capsys.readouterr().out


def test_trainings_that_were_kept_from_other_families_are_tested_on_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = SPEECH.words.ids
    actor = actor_of(config_of(TINY, len(ids), ids["<end>"], ids["<pad>"]), 0)
    words = ["contest", str(Path(__file__).parent / "data" / "cpu-tables.parquet")]
    for part in (0, 1):
        weights.save(actor, SPEECH, HeldOut(0.5, part).to_card(), tmp_path / str(part))
        words += ["--policy", str(tmp_path / str(part))]
    words += ["--out", str(tmp_path / "out"), "--seeds", "1", "--rivals", "order"]
    assert main(words) == 0
    found = json.loads((tmp_path / "out" / "arena.json").read_text())
    played = found["games"]["held_out"]
    parts = [HeldOut(0.5, part).families([t.family for t in TABLES]) for part in (0, 1)]
    sides = [[n for n in playable(TABLES) if TABLES[n].family in part] for part in parts]
    every = {TABLES[n].id for side in sides for n in judged_on(TABLES, side)}
    assert set(played["trained"]) == set(played["order"]) == every
    assert all(len(games) == 1 for games in played["trained"].values())
    assert set(found["splits"]["held_out"]["trained"]["slowdown_over"]) == {"order"}
    weights.save(actor, SPEECH, HeldOut(0.2).to_card(), tmp_path / "third")
    assert main([*words, "--policy", str(tmp_path / "third")]) == 2
    assert "several sizes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("card", "said"), [({}, "does not say of a share"), ({"held_out": 0.0}, "does not say")]
)
def test_a_policy_that_was_kept_from_nothing_is_not_compared(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], card: Any, said: str
) -> None:
    ids = SPEECH.words.ids
    actor = actor_of(config_of(TINY, len(ids), ids["<end>"], ids["<pad>"]), 0)
    weights.save(actor, SPEECH, card, tmp_path / "other")
    file = str(Path(__file__).parent / "data" / "cpu-tables.parquet")
    words = ["contest", file, "--policy", str(tmp_path / "other"), "--out", str(tmp_path / "out")]
    assert main(words) == 2 and said in capsys.readouterr().err


def test_the_contest_gives_the_arenas_figures_of_all(sampler: Sampler) -> None:
    found = contest.contest(sampler, TABLES[:8], TABLES[8:], ("order", "search-blind"), 2)
    assert sorted(found) == ["order", "search-blind", "trained"]
    for figures in found.values():
        assert figures["seeds"] == 2 and figures["tables"] == len(TABLES) - 8
        assert all(figures["at"][str(b)]["worst_slowdown"] >= 1.0 for b in BUDGETS)
