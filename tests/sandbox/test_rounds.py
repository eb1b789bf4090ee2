"""Rounds of samples, with contestants that only pretend to run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judge_kit import spec

from sandbox import coldcache
from sandbox.coldcache import ColdCache
from sandbox.expected import InputSet, Source
from sandbox.rounds import Contestant, Effort, Record, Stopwatch
from sandbox.supervisor import RunTime
from sandbox.verdict import Crashed


class FakeWorker:
    """Takes `seconds` and remembers who ran on what."""

    def __init__(self, fails_at: int = -1) -> None:
        self.runs: list[tuple[int, int]] = []
        self.walls: list[bool] = []
        self.fails_at = fails_at

    def drop(self) -> None:
        """Nothing to free."""

    def run(self, slot: int, number: int, timeout_s: float, wall: bool = True) -> RunTime | Crashed:
        self.runs.append((slot, number))
        self.walls.append(wall)
        if len(self.runs) == self.fails_at:
            return Crashed("run", "SIGSEGV")
        return RunTime(1.0 + slot if wall else None, 1.0 + slot)


def sets() -> list[InputSet]:
    made = [InputSet(number, [spec(16)], "cpu") for number in range(3)]
    for inputs in made:
        inputs.fill(Source("normal", inputs.number), [None])
    return made


def field(worker: Any, second: int | None = None) -> list[Contestant]:
    return [Contestant("a", worker, 0), Contestant("b", worker, 1, second)]


def test_a_round_runs_everyone_once_on_one_set_and_sets_and_order_change() -> None:
    worker = FakeWorker()
    record = Stopwatch(sets(), 1.0, seed=3).rounds(field(worker), Effort(20, 20, 9.0))
    assert isinstance(record, Record)
    rounds = [worker.runs[i : i + 2] for i in range(0, 40, 2)]
    assert all({slot for slot, _ in one} == {0, 1} for one in rounds)
    assert all(len({number for _, number in one}) == 1 for one in rounds)
    assert {one[0][1] for one in rounds} == {0, 1, 2}
    assert {one[0][0] for one in rounds} == {0, 1}
    assert record.wall == {"a": [1.0] * 20, "b": [2.0] * 20}


def test_a_contestant_may_sit_out_the_later_rounds() -> None:
    record = Stopwatch(sets(), 1.0, 1).rounds(field(FakeWorker(), second=5), Effort(12, 12, 9.0))
    assert isinstance(record, Record)
    assert record.wall["b"] == [2.0] * 5 + [None] * 7


def test_looks_are_taken_at_doubling_numbers_and_can_stop_it() -> None:
    seen: list[int] = []

    def stop(record: Record) -> bool:
        seen.append(len(record.wall["a"]))
        return len(seen) == 3

    record = Stopwatch(sets(), 1.0, 1).rounds(field(FakeWorker()), Effort(4, 100, 60.0), stop)
    assert isinstance(record, Record)
    assert seen == [4, 8, 16]
    assert len(record.wall["a"]) == 16


def test_time_ends_it_but_not_before_the_least_number_of_rounds() -> None:
    record = Stopwatch(sets(), 1.0, 1).rounds(field(FakeWorker()), Effort(6, 100, 0.0))
    assert isinstance(record, Record)
    assert len(record.wall["a"]) == 6


def test_rounds_without_wall_times_have_the_device_s_alone() -> None:
    worker = FakeWorker()
    watch = Stopwatch(sets(), 1.0, 1)
    assert watch.warm_up(field(worker), repeats=1, wall=False) is None
    record = watch.rounds(field(worker), Effort(4, 4, 9.0), wall=False)
    assert isinstance(record, Record)
    assert worker.walls == [False] * (2 * 3 + 2 * 4)
    assert record.device == {"a": [1.0] * 4, "b": [2.0] * 4}
    assert record.wall == {"a": [None] * 4, "b": [None] * 4}


def test_a_failure_ends_it_at_once() -> None:
    found = Stopwatch(sets(), 1.0, 1).rounds(field(FakeWorker(fails_at=5)), Effort())
    assert found == Crashed("run", "SIGSEGV")


@pytest.mark.parametrize("by_line", [True, False])
def test_evicting_leaves_the_values_alone(by_line: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_line:
        monkeypatch.setattr(coldcache, "_launcher_flush", lambda: None)
    tensors = [torch.arange(1000.0), torch.empty(0), torch.ones(3, 4).t()]
    ColdCache().evict(tensors)
    assert torch.equal(tensors[0], torch.arange(1000.0))


def test_new_values_are_written_in_place_and_counted() -> None:
    inputs = InputSet(0, [spec(64)], "cpu")
    inputs.fill(Source("normal", 1), [None])
    address, before = inputs.tensors[0].data_ptr(), inputs.tensors[0].clone()
    inputs.fill(Source("normal", 2), [None])
    assert inputs.tensors[0].data_ptr() == address
    assert not torch.equal(inputs.tensors[0], before)
    assert inputs.version == 2


def test_every_round_has_values_of_its_own() -> None:
    seen: list[list[float]] = []
    worker = FakeWorker()
    made = sets()
    watch = Stopwatch(made, 1.0, 1, before_round=lambda inputs: inputs.restir(len(seen)))

    def note(contestant: Contestant, inputs: InputSet) -> None:
        seen.append(inputs.tensors[0].tolist())

    watch.rounds([Contestant("a", worker, 0)], Effort(20, 20, 9.0), after=note)
    assert len(seen) == 20
    assert len({tuple(values) for values in seen}) == 20
    assert sum(len(inputs.stirs) for inputs in made) == 20


def test_one_of_former_values_runs_before_the_set_is_renewed() -> None:
    seen: dict[str, list[tuple[int, int]]] = {"candidate": [], "beside": []}
    worker = FakeWorker()
    watch = Stopwatch(sets(), 1.0, 1, before_round=lambda inputs: inputs.restir(7))

    def note(contestant: Contestant, inputs: InputSet) -> None:
        seen[contestant.name].append((inputs.number, len(inputs.stirs)))

    field = [Contestant("candidate", worker, 0), Contestant("beside", worker, 1, former=True)]
    record = watch.rounds(field, Effort(20, 20, 9.0), after=note)
    assert [(n, stirs - 1) for n, stirs in seen["candidate"]] == seen["beside"]
    assert len(record.device["beside"]) == len(record.device["candidate"]) == 20  # type: ignore[union-attr]


def test_a_snapshot_does_not_follow_the_set() -> None:
    inputs = sets()[1]
    before = inputs.snapshot()
    assert torch.equal(before[0], inputs.tensors[0])
    inputs.restir(4)
    assert not torch.equal(before[0], inputs.tensors[0])
    inputs.fill(Source("normal", 9), [None])
    assert inputs.stirs == ()
