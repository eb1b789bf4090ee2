"""Timed runs looked at by surprise, with a session and a worker that only count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sandbox.accuracy.fingerprint import fingerprints
from sandbox.accuracy.reference import Reference
from sandbox.accuracy.rule import Comparison, Draw, Nearby
from sandbox.failures import Crashed, Failed
from sandbox.judge import spot_check as spotcheck
from sandbox.judge.input_sets import InputSet, Moment
from sandbox.judge.rounds import Contestant, Effort, Stopwatch
from sandbox.judge.session import Session
from sandbox.judge.spot_check import SpotCheck
from sandbox.verdict import Wrong, lacks_memory
from sandbox.workers.supervisor import CallTime, Clock, Trouble, WorkerProcess

RIGHT = torch.arange(8.0)


class Candidate:
    """Its outputs, and what the judge expects of it."""

    def __init__(self) -> None:
        self.output: Any = [RIGHT.clone()]
        self.fetched = 0
        self.fails = False
        self.released = 0
        self.inputs = list[torch.Tensor]()
        """What the worker holds, on a device."""

    def fetch(self, worker: WorkerProcess) -> Any:
        self.fetched += 1
        return self.output

    def fingerprints(self, worker: WorkerProcess, inputs: InputSet, seed: int) -> list[int]:
        return fingerprints(self.inputs, seed)

    def reference_of(self, inputs: Any, again: Any = None) -> Reference | Failed:
        if self.fails:
            return Failed("oracle", "no memory")
        return Reference([RIGHT], [RIGHT.double()])

    def release(self) -> None:
        self.released += 1

    def compare(self, comparison: Comparison, draw: Draw) -> None:
        comparison.add(draw)

    def nearby(self, inputs: Any) -> Nearby:
        return lambda: [([RIGHT], [RIGHT.double()])]


INPUTS = cast("InputSet", SimpleNamespace(target="cpu", moment=lambda: Moment(list)))
WORKER = cast("WorkerProcess", None)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Candidate:
    monkeypatch.setattr(spotcheck, "SETTLE_SECONDS", 0.0)
    return Candidate()


def check_of(mine: Candidate, rounds: int = 12) -> SpotCheck:
    return SpotCheck(cast("Session", mine), rounds)


def test_on_average_six_of_the_first_runs_and_three_of_each_later_stretch(mine: Candidate) -> None:
    first, later = [], []
    for _ in range(200):
        check, mine.fetched = check_of(mine), 0
        for _ in range(12):
            assert check.after_call(WORKER, INPUTS) is None
        first.append(mine.fetched)
        check.look()
        for _ in range(12):
            check.after_call(WORKER, INPUTS)
        later.append(mine.fetched - first[-1])
        check.compare()
        assert check.checked == mine.fetched
        assert check.wrong is None
    assert 5.0 < sum(first) / 200 < 7.0
    assert 2.2 < sum(later) / 200 < 3.8
    assert len(set(first)) > 3  # how many were looked at says nothing of the rest


def test_what_is_compared_waits_for_the_end_unless_it_is_much(
    mine: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_of(mine)
    mine.output = [RIGHT + 1]
    check.take(WORKER, INPUTS)
    check.look()
    assert check.wrong is None and check.checked == 0
    monkeypatch.setattr(spotcheck, "HELD_BYTES", 2 * RIGHT.nbytes - 1)
    check.take(WORKER, INPUTS)
    check.look()
    assert isinstance(check.wrong, Wrong) and check.checked == 2
    check.take(WORKER, INPUTS)
    check.look()
    assert check.checked == 2


def test_outputs_that_can_wait_are_copied_and_larger_ones_are_compared_at_once(
    mine: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spotcheck, "KEPT_BYTES", 2 * RIGHT.nbytes)
    monkeypatch.setattr(spotcheck, "KEPT_LOOKS", 2)
    made_room, inputs = list[int](), INPUTS

    def aside(given: InputSet, compare: Callable[[], None]) -> None:
        made_room.append(check.checked)
        compare()

    check = SpotCheck(cast("Session", mine), 12, aside)
    for _ in range(2):
        check.take(WORKER, inputs)
        mine.output[0].zero_()  # the next outputs are written where these were
        mine.output = [RIGHT.clone()]
    check.look()
    assert not made_room and check.checked == 0
    check.take(WORKER, inputs)
    assert made_room == [0] and check.checked == 1, "there is no room for a third"
    check.compare()
    assert check.checked == 3 and check.wrong is None and mine.released == 3
    check.take(WORKER, inputs)
    monkeypatch.setattr(spotcheck, "KEPT_LOOKS", 3)
    check.compare()
    mine.output = [RIGHT + 1]
    check.take(WORKER, inputs)
    assert made_room == [0, 4] and isinstance(check.wrong, Wrong)


def test_who_begins_to_cheat_later_is_caught(mine: Candidate) -> None:
    caught = 0
    for _ in range(100):
        check = check_of(mine)
        mine.output = [RIGHT.clone()]
        for _ in range(12):
            check.after_call(WORKER, INPUTS)
        check.look()
        mine.output = [RIGHT + 1]
        for length in (12, 24):
            for _ in range(length):
                check.after_call(WORKER, INPUTS)
            check.look()
        mine.output = [RIGHT.clone()]  # right again by the time of the last run
        check.take(WORKER, INPUTS)
        check.compare()
        caught += isinstance(check.wrong, Wrong)
    assert caught > 90


class Worker:
    """Runs the candidate by either clock, wrongly where `cheats` says so."""

    def __init__(self, mine: Candidate, cheats: Callable[[Clock, int], bool]) -> None:
        self.mine, self.cheats = mine, cheats
        self.calls = Counter[Clock]()

    def drop(self) -> None:
        self.mine.output = []

    def run(self, slot: int, number: int, timeout_s: float, clock: Clock) -> CallTime:
        self.mine.output = [RIGHT + self.cheats(clock, self.calls[clock])]
        self.calls[clock] += 1
        return CallTime(1.0)


def raced(mine: Candidate, cheats: Callable[[Clock, int], bool]) -> SpotCheck:
    """A race of twelve rounds on a device, after its comparison; without a last run."""
    check, worker = check_of(mine), cast("WorkerProcess", Worker(mine, cheats))

    def after(contestant: Contestant, inputs: InputSet, clock: Clock) -> Trouble | None:
        return check.after_call(contestant.worker, inputs, clock)

    sets = [cast("InputSet", SimpleNamespace(target="cuda", number=0, moment=lambda: Moment(list)))]
    watch = Stopwatch(sets, 1.0, 1)
    watch.rounds([Contestant("candidate", worker, 2)], Effort(12, 12, 9.0), after=after)
    check.compare()
    return check


@pytest.mark.parametrize(
    ("by", "every", "least"), [("device", 1, 195), ("device", 2, 185), ("wall", 1, 175)]
)
def test_who_tells_the_clocks_apart_and_leaves_out_work_for_one_is_caught(
    mine: Candidate, by: Clock, every: int, least: int
) -> None:
    """In half of what the device times, too, as often as where there is one clock."""
    found = [raced(mine, lambda clock, call: clock == by and call % every == 0) for _ in range(200)]
    assert sum(isinstance(check.wrong, Wrong) for check in found) >= least


def test_calls_by_both_clocks_are_looked_at_each_drawn_by_itself(mine: Candidate) -> None:
    found = [raced(mine, lambda clock, call: False) for _ in range(200)]
    assert all(check.wrong is None for check in found)
    device = [check.checked_by["device"] for check in found]
    wall = [check.checked_by["wall"] for check in found]
    assert 5.0 < sum(device) / 200 < 7.0
    assert 2.4 < sum(wall) / 200 < 3.6
    assert len({*zip(device, wall, strict=True)}) > 12  # the one says nothing of the other


def test_wrong_outputs_count_for_more_than_a_comparison_that_failed(mine: Candidate) -> None:
    check = check_of(mine)
    mine.fails = True
    check.take(WORKER, INPUTS)
    check.compare()
    assert isinstance(check.wrong, Failed)
    mine.fails, mine.output = False, [RIGHT + 1]
    check.take(WORKER, INPUTS)
    mine.output = [RIGHT]
    check.take(WORKER, INPUTS)
    check.compare()
    assert isinstance(check.wrong, Wrong)


def test_inputs_that_cannot_be_had_again_for_lack_of_memory_are_looked_at_later(
    mine: Candidate,
) -> None:
    full = [True]

    def values() -> list[torch.Tensor]:
        if full:
            full.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return []

    inputs = cast("InputSet", SimpleNamespace(target="cuda", moment=lambda: Moment(values)))
    check = check_of(mine)
    mine.output = [RIGHT + 1]
    check.take(WORKER, inputs)
    check.compare()
    assert isinstance(check.wrong, Failed) and lacks_memory(check.wrong) and check.checked == 0
    check.compare()
    assert isinstance(check.wrong, Wrong) and check.checked == 1


def test_a_worker_that_dies_at_it_is_told(mine: Candidate) -> None:
    mine.output = Crashed("fetch", "SIGSEGV")
    assert check_of(mine).take(WORKER, INPUTS) == mine.output
    mine.output = "3 outputs instead of 1"
    assert isinstance(check_of(mine).take(WORKER, INPUTS), Failed)


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_who_leaves_results_in_an_input_is_wrong_though_its_outputs_are_right(
    mine: Candidate, target: str
) -> None:
    """On cpu inputs cannot be written to, and nobody is asked."""
    values = [torch.arange(6.0), torch.ones(3, dtype=torch.int64)]
    moment = Moment(lambda: values)
    inputs = cast("InputSet", SimpleNamespace(target=target, moment=lambda: moment))
    check = check_of(mine)
    mine.inputs = [value.clone() for value in values]
    check.take(WORKER, inputs)
    check.compare()
    assert check.wrong is None and check.checked == 1
    mine.inputs[1][2] += 1
    check.take(WORKER, inputs)
    check.compare()
    if target == "cpu":
        assert check.wrong is None
    else:
        assert isinstance(check.wrong, Wrong) and "wrote to input 1" in check.wrong.reason
