"""How fast tables answer: every judgement is one that a table gave, and a file says how many came in a second."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import replay_rate
from benchmarks.replay_rate import EACH, judgements, messages
from trainer.world.files import read
from trainer.world.replay import Replay
from trainer.world.replay_tools import ReplayTools

FILE = Path(__file__).parents[1] / "trainer" / "data" / "cpu-tables.parquet"


def test_what_is_counted_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = read([FILE])[:3]
    asked: list[int] = []
    answers: list[str] = []
    judge, run = Replay.judge, ReplayTools.run

    def judged(self: Replay, row: int) -> object:
        asked.append(row)
        return judge(self, row)

    def ran(self: ReplayTools, calls: object) -> object:
        found = run(self, calls)  # type: ignore[arg-type]
        answers.extend(str(message["content"]) for message in found)
        return found

    monkeypatch.setattr(Replay, "judge", judged)
    monkeypatch.setattr(ReplayTools, "run", ran)
    assert judgements(tables, 0) == len(asked) == EACH * len(tables)
    assert messages(tables, 0) == sum(len(table.rows) for table in tables)
    profiles = answers[1::2]
    assert len(profiles) == messages(tables, 1) and any('"speedup"' in said for said in profiles)
    assert not any("no candidate" in said for said in profiles)


def test_the_file_has_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay_rate", str(FILE), "--runs", "2", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    replay_rate.main()
    found = json.loads((tmp_path / "replay-rate.json").read_text())
    for name in ("judge", "messages"):
        runs = found["samples"][name]["a_second"]
        assert len(runs) == 2 and found["summary"][name]["least"] == round(min(runs))
    assert "in the slowest run" in capsys.readouterr().out
