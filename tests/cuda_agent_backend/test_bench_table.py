"""The table of a run, written as tasks end, and what phases held of the device."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_kit import Played, bench_of, task

from cuda_agent_backend.bench import memory, report, runner
from cuda_agent_backend.bench.discovery import TaskFile
from cuda_agent_backend.bench.runner import Machine


def test_the_table_is_there_as_tasks_end_and_of_what_was_done_before(tmp_path: Path) -> None:
    tasks = [task(tmp_path / "t" / f"bad_{name}.py") for name in "abc"]
    bench, machine = bench_of(tmp_path, jobs=1), Machine({"cpu": "x"}, {}, tmp_path / "lock")
    seen: list[list[str]] = []

    def go(tasks_now: list[TaskFile]) -> report.Book:
        book = report.Book(bench, machine, "sources", [], [task.name for task in tasks])

        def tell(one: dict[str, Any]) -> None:
            book.add(one)
            book._next_write = 0.0  # as if writing had taken no time
            book.write_along()
            seen.append(sorted(json.loads(book.path.read_text())["tasks"]))

        runner.run(bench, tasks_now, machine, "sources", Played(), tell, book.add)  # type: ignore[arg-type]
        return book

    assert go(tasks[:1]).facts()["missing"] == ["bad_b", "bad_c"]
    assert seen == [["bad_a"]]
    whole = go(tasks).write()
    assert [len(names) for names in seen[1:]] == [2, 3] and "bad_a" in seen[1]
    assert whole["missing"] == [] and whole["summary"]["overall"]["tasks"] == 3
    assert list(whole["tasks"]) == [task.name for task in tasks]


def test_the_table_is_not_written_anew_while_that_would_take_much_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    written: list[float] = []
    machine = Machine({"cpu": "x"}, {}, tmp_path / "lock")
    book = report.Book(bench_of(tmp_path), machine, "sources", [], [])

    def write() -> None:
        written.append(now[0])
        now[0] += 1.0

    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(book, "write", write)
    for moment in (0.0, 5.0, 20.9, 21.0, 30.0):
        now[0] = moment
        book.write_along()
    assert written == [0.0, 21.0]


# What a phase held.


SAID = "11, 700\n12, 1024\n13, [N/A]\nnone\n"


@pytest.mark.parametrize(
    ("pids", "held"), [({11}, 700), ({11, 12}, 1724), ({11, 13}, 700), ({13}, None), (set(), None)]
)
def test_what_processes_hold_is_read_from_what_the_driver_says(
    pids: set[int], held: int | None
) -> None:
    assert memory.held_by(SAID, pids) == (None if held is None else held << 20)


def test_the_peak_of_a_phase_is_its_processes_or_what_the_device_had_more() -> None:
    device = {"device": 900, "device_before": 300}
    assert memory.peak_of({**device, "processes": 500}) == 500
    assert memory.peak_of({**device, "processes": None}) == 600
    assert memory.peak_of({"processes": None, "device": None, "device_before": None}) is None
    assert memory.peak_of({}) is None


def test_a_device_that_no_phase_uses_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(memory, "_said", lambda: asked.append("driver") or "")
    for target in ("cpu", "cuda"):
        with memory.PhaseMemory(target) as watched:
            pass
        assert watched.facts() == {}
    assert not asked and not torch.cuda.is_initialized()
