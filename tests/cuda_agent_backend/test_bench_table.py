"""The table of a run, written as tasks end; what phases held of the device, and what runs together on it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_kit import GOOD, Played, bench_of, request, task

from cuda_agent_backend.bench import child, memory, report, runner
from cuda_agent_backend.bench.admission import UNKNOWN_BYTES, Admission, needed_bytes
from cuda_agent_backend.bench.children import Failed
from cuda_agent_backend.bench.discovery import TaskFile
from cuda_agent_backend.bench.request import Request
from cuda_agent_backend.bench.runner import Machine
from sandbox.memory.footprint import CONTEXT_BYTES


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


# What runs together.


GB = 10**9
SIZE = {"given": 6 * GB, "outputs": 6 * GB, "peak": 12 * GB}


def test_what_a_task_needs_is_what_it_may_hold_with_its_processes() -> None:
    contexts = 6 * CONTEXT_BYTES
    assert needed_bytes(SIZE) == 6 * GB + 30 * GB + (2 << 30) + contexts
    greedy = {"given": GB, "outputs": GB, "peak": 9 * GB}
    assert needed_bytes(greedy) == GB + (4 + 7) * GB + (2 << 30) + contexts
    assert needed_bytes({}) == UNKNOWN_BYTES


def test_those_are_let_in_who_fit_beside_all_others_in_their_order() -> None:
    admission = Admission(100)
    order: list[str] = []
    there = threading.Semaphore(0)
    may_go = {name: threading.Event() for name in "abcd"}

    def work(name: str, size: int) -> None:
        with admission.hold(size):
            order.append(name)
            there.release()
            may_go[name].wait(60)

    threads = []
    for name, size in (("a", 60), ("b", 30), ("c", 500), ("d", 5)):
        threads.append(threading.Thread(target=work, args=(name, size)))
        threads[-1].start()
        while len(admission._line) + len(order) < len(threads):
            time.sleep(0.01)
    assert there.acquire(timeout=60) and there.acquire(timeout=60)
    assert not there.acquire(timeout=0.2) and order == ["a", "b"], "d passed by c"
    may_go["a"].set()
    assert not there.acquire(timeout=0.2), "c was not alone"
    may_go["b"].set()
    assert there.acquire(timeout=60) and order[2:] == ["c"]
    may_go["c"].set()
    assert there.acquire(timeout=60) and order[3:] == ["d"]
    may_go["d"].set()
    for thread in threads:
        thread.join(60)


def test_who_asks_for_a_place_again_comes_before_all_that_wait() -> None:
    admission, order = Admission(None, 1), []

    def waits() -> None:
        with admission.hold(0):
            order.append("another search")

    other = threading.Thread(target=waits)
    with admission.hold(0) as place:
        other.start()
        while not admission._line:
            time.sleep(0.01)
        for phase in ("first", "second"):
            place.again(alone=True)
            order.append(phase)
    other.join(60)
    assert order == ["first", "second", "another search"]


def test_whatever_ends_a_phase_gives_its_bytes_back() -> None:
    admission = Admission(10)
    for _ in range(2):
        with pytest.raises(RuntimeError), admission.hold(10):
            raise RuntimeError
    with admission.hold(10):
        assert not Admission(None).counts and admission.counts


class Sized(Played):
    """Tells of each task what it needs, and notes what is under way together."""

    def __init__(self) -> None:
        super().__init__()
        self.now: list[str] = []
        self.most = self.sizing = 0

    def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
        if phase == "size":
            with self.lock:
                self.sizing += 1
                assert self.sizing == 1, "each process imports torch"
            time.sleep(0.01)
            with self.lock:
                self.sizing -= 1
            return Failed(phase, "odd") if folder.name == "odd" else SIZE
        with self.lock:
            self.now.append(folder.name)
            self.most = max(self.most, len(self.now))
        time.sleep(0.02)
        with self.lock:
            self.now.remove(folder.name)
        return Failed(phase, "it broke")


@pytest.mark.parametrize(("free", "most"), [(85 * GB, 2), (40 * GB, 1), (1000 * GB, 4)])
def test_as_many_tasks_run_as_the_device_has_memory_for(
    tmp_path: Path, free: int, most: int
) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("a", "b", "c", "d", "e", "f")]
    bench, children = bench_of(tmp_path, jobs=4), Sized()
    machine = Machine({"cpu": "x"}, {}, tmp_path / "lock", free)
    found = runner.run(bench, tasks, machine, "sources", children, lambda one: None)  # type: ignore[arg-type]
    assert len(found) == 6 and children.most <= most
    assert all(one["needed"] == needed_bytes(SIZE) for one in found)


def test_a_task_of_unknown_size_is_run_as_one_of_usual_size(tmp_path: Path) -> None:
    machine = Machine({"cpu": "x"}, {}, tmp_path / "lock", 80 * GB)
    tasks, bench = [task(tmp_path / "t" / "odd.py")], bench_of(tmp_path)
    (found,) = runner.run(bench, tasks, machine, "sources", Sized(), lambda one: None)  # type: ignore[arg-type]
    assert found["needed"] == UNKNOWN_BYTES and found["reason"] == "it broke"


def test_a_child_tells_what_a_task_holds_without_running_it(tmp_path: Path) -> None:
    text = GOOD.replace("(256, 64)", "(1_000_000, 64)")
    asked = replace(request(tmp_path), file=str(task(tmp_path / "good.py", text).path))
    found = child.size(asked)
    assert found["outputs"] == 256_000_000
    assert found["given"] == 256_000_000 + 4 * 64 + 8 * 3
    assert found["peak"] >= found["given"] + 2 * found["outputs"]
