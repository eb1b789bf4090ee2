"""Rounds of samples, with contestants that only pretend to run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from judge_kit import spec

from sandbox.failures import Crashed
from sandbox.judge import rounds
from sandbox.judge.input_sets import InputSet, Source
from sandbox.judge.rounds import Contestant, Effort, Record, RunTime, Stopwatch
from sandbox.timing import cold_cache as coldcache
from sandbox.timing.cold_cache import ColdCache
from sandbox.workers.supervisor import CallTime, Clock


class FakeWorker:
    """Takes `seconds` and remembers who ran on what."""

    def __init__(self, fails_at: int = -1, late: int = 0) -> None:
        self.runs: list[tuple[int, int]] = []
        self.clocks: list[Clock] = []
        self.fails_at, self.late = fails_at, late
        self.dropped = 0

    def drop(self) -> None:
        """Nothing to free."""
        self.dropped += 1

    def run(
        self, slot: int, number: int, timeout_s: float, clock: Clock = "device"
    ) -> CallTime | Crashed:
        self.runs.append((slot, number))
        self.clocks.append(clock)
        if len(self.runs) == self.fails_at:
            return Crashed("run", "SIGSEGV")
        self.late -= 1
        return CallTime(1.0 + slot + 10 * (clock == "wall"), self.late >= 0)


def sets(target: str = "cpu") -> list[InputSet]:
    made = [InputSet(number, [spec(16)], target) for number in range(3)]
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


def test_what_looking_at_outputs_takes_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, sleep=lambda _: None)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(rounds, "time", clock)

    class Slow(FakeWorker):
        def run(self, *given: Any) -> CallTime:
            clock.now += 1.0
            return super().run(*given)

    def look(*_: Any) -> None:
        clock.now += 100.0

    for after in (None, look):
        clock.now = 0.0
        watch = Stopwatch(sets(), 1.0, 1)
        record = watch.rounds(field(Slow()), Effort(2, 100, 9.0), after=after)
        assert isinstance(record, Record) and len(record.wall["a"]) == 5


def test_rounds_without_wall_times_have_the_device_s_alone() -> None:
    worker = FakeWorker()
    watch = Stopwatch(sets("cuda"), 1.0, 1)
    assert watch.warm_up(field(worker), repeats=1) is None
    record = watch.rounds(field(worker), Effort(4, 4, 9.0), wall=False)
    assert isinstance(record, Record)
    assert worker.clocks == ["device"] * (2 * 3 + 2 * 4)
    assert record.device == {"a": [1.0] * 4, "b": [2.0] * 4}
    assert record.wall == {"a": [None] * 4, "b": [None] * 4}


def alone(worker: Any) -> list[Contestant]:
    return [Contestant("a", worker, 0)]


def test_on_cuda_each_clock_has_a_call_the_device_s_first_and_outputs_of_both_are_there() -> None:
    worker, seen = FakeWorker(), list[tuple[Clock, int]]()
    watch = Stopwatch(sets("cuda"), 1.0, 1)

    def note(contestant: Contestant, inputs: InputSet, clock: Clock) -> None:
        seen.append((clock, len(worker.runs)))

    record = watch.rounds(alone(worker), Effort(4, 4, 9.0), after=note)
    assert isinstance(record, Record)
    assert record.device == {"a": [1.0] * 4} and record.wall == {"a": [11.0] * 4}
    assert worker.clocks == ["device", "wall"] * 4
    assert seen == [(clock, call + 1) for call, clock in enumerate(worker.clocks)]
    assert worker.dropped == 8  # what a call has left is given up before the next


def test_on_cpu_one_call_gives_both_times() -> None:
    worker, seen = FakeWorker(), list[Clock]()

    def note(contestant: Contestant, inputs: InputSet, clock: Clock) -> None:
        seen.append(clock)

    record = Stopwatch(sets(), 1.0, 1).rounds(field(worker), Effort(4, 4, 9.0), after=note)
    assert isinstance(record, Record)
    assert record.device == record.wall == {"a": [1.0] * 4, "b": [2.0] * 4}
    assert seen == worker.clocks == ["device"] * 8


def test_a_late_call_is_made_again_once_on_other_values_and_its_outputs_are_not_looked_at() -> None:
    worker, seen, renewed = FakeWorker(late=9), list[int](), list[int]()

    def renew(inputs: InputSet) -> None:
        inputs.perturb(len(renewed))
        renewed.append(len(worker.runs))

    def note(contestant: Contestant, inputs: InputSet, clock: Clock) -> None:
        seen.append(len(worker.runs))

    watch = Stopwatch(sets("cuda"), 1.0, 1, renew)
    results = watch.round(alone(worker), 0, note, wall=False)
    assert results == {"a": RunTime(None, 1.0)}
    assert renewed == [0, 1]  # for the round, and between the late call and the one that counts
    assert seen == [2]


def test_a_warm_up_makes_no_call_again() -> None:
    worker = FakeWorker(late=9)
    watch = Stopwatch(sets("cuda"), 1.0, 1, lambda inputs: Crashed("draw", "SIGKILL"))
    assert watch.warm_up(field(worker), repeats=1) is None
    assert len(worker.runs) == 6


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
    watch = Stopwatch(made, 1.0, 1, before_round=lambda inputs: inputs.perturb(len(seen)))

    def note(contestant: Contestant, inputs: InputSet, clock: Clock) -> None:
        seen.append(inputs.tensors[0].tolist())

    watch.rounds([Contestant("a", worker, 0)], Effort(20, 20, 9.0), after=note)
    assert len(seen) == 20
    assert len({tuple(values) for values in seen}) == 20
    assert sum(len(inputs.perturbations) for inputs in made) == 20


def test_one_of_former_values_runs_before_the_set_is_renewed() -> None:
    seen: dict[str, list[tuple[int, int]]] = {"candidate": [], "beside": []}
    worker = FakeWorker()
    watch = Stopwatch(sets(), 1.0, 1, before_round=lambda inputs: inputs.perturb(7))

    def note(contestant: Contestant, inputs: InputSet, clock: Clock) -> None:
        seen[contestant.name].append((inputs.number, len(inputs.perturbations)))

    field = [Contestant("candidate", worker, 0), Contestant("beside", worker, 1, former=True)]
    record = watch.rounds(field, Effort(20, 20, 9.0), after=note)
    assert [(n, perturbations - 1) for n, perturbations in seen["candidate"]] == seen["beside"]
    assert len(record.device["beside"]) == len(record.device["candidate"]) == 20  # type: ignore[union-attr]


def test_a_snapshot_does_not_follow_the_set() -> None:
    inputs = sets()[1]
    before = inputs.snapshot()
    assert torch.equal(before[0], inputs.tensors[0])
    inputs.perturb(4)
    assert not torch.equal(before[0], inputs.tensors[0])
    inputs.fill(Source("normal", 9), [None])
    assert inputs.perturbations == ()
