"""The trained policy among the arena's rivals: it asks for the rows that its calls had judged, within its budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.agent.policies.trained.sampler import Sampler
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import ToolCall
from trainer.arena.play import BUDGETS
from trainer.policy.model import Size, actor_of, config_of
from trainer.rivals.protocol import view_of
from trainer.rollout.demonstrations import chance_policy
from trainer.stages import contest
from trainer.stages.contest import TrainedRival, _row
from trainer.world.files import read
from trainer.world.replay import Replay

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


def test_it_asks_for_each_row_once_and_for_those_that_were_judged(sampler: Sampler) -> None:
    asked = 0
    for table in TABLES:
        rival = TrainedRival(sampler, [table], 10)
        replay, rows = Replay(table), []
        game = rival.play(view_of(table), 0)
        try:
            row = next(game)
            while True:
                rows.append(row)
                row = game.send(replay.judge(row))
        except StopIteration:
            pass
        assert len(rows) == len(set(rows)) <= len(table.rows)
        asked += len(rows)
    assert asked > len(TABLES) / 2


def test_which_calls_have_a_row_judged() -> None:
    table = TABLES[0]
    view, name = view_of(table), table.rows[1].candidate
    schedule = json.loads(table.rows[0].schedules[0])
    assert _row(ToolCall.of("1", "profile", candidate=name), view) == 1
    assert _row(ToolCall.of("1", "submit", candidate=name), view) == 1
    assert _row(ToolCall.of("1", "submit", reason="no"), view) is None
    assert _row(ToolCall.of("1", "inspect", candidate=name), view) is None
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


def test_the_contest_gives_the_arenas_figures_of_all(sampler: Sampler) -> None:
    found = contest.contest(sampler, TABLES[:8], TABLES[8:], ("order", "nearest"), 2)
    assert sorted(found) == ["nearest", "order", "trained"]
    for figures in found.values():
        assert figures["seeds"] == 2 and figures["tables"] == len(TABLES) - 8
        assert all(figures["at"][str(b)]["worst_slowdown"] >= 1.0 for b in BUDGETS)
