"""How long a device sleeps before what is timed on it, and which call's outputs are had with its time."""

from typing import Any

import pytest
import torch

from sandbox.cudaclock import LONGEST_SLEEP_SECONDS, MARGIN, SLEEP_SECONDS, CudaClock, sleep_for


def test_the_sleep_outlasts_what_the_host_takes_to_queue_a_call() -> None:
    assert sleep_for(queued=1e-4, slept=2e-4) == 2e-4
    assert sleep_for(queued=1e-3, slept=2e-4) == MARGIN * 1e-3
    assert sleep_for(queued=1e-3, slept=2e-3) == 2e-3
    assert sleep_for(queued=1.0, slept=2e-4) == LONGEST_SLEEP_SECONDS


class Clock(CudaClock):
    """Of no device: a call on it takes 3 us, and so long to be queued as `queueing` says, then 10 us."""

    def __init__(self, *queueing: float) -> None:
        self.device = torch.device("cuda", 0)
        self._sleep, self._raised = SLEEP_SECONDS, False
        self.flushed, self.queueing = 0, [*queueing]
        self.slept: list[float] = []

    def flush(self) -> None:
        self.flushed += 1

    def _device_seconds(self, call: Any, inputs: list[Any]) -> tuple[Any, float, float]:
        self.flush()
        self.slept.append(self._sleep)
        return call(inputs), 3e-6, self.queueing.pop(0) if self.queueing else 1e-5


class Counted:
    """A callable whose output is the number of the call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: list[Any]) -> Any:
        self.calls += 1
        return [self.calls]


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def test_a_time_of_either_clock_is_that_of_one_cold_call_whose_outputs_come_with_it() -> None:
    clock, call = Clock(), Counted()
    assert clock.by_device(call, [1]) == ([1], 3e-6, False)
    assert (call.calls, clock.flushed) == (1, 1)
    outputs, seconds = clock.by_wall(call, [1])
    assert outputs == [2] and seconds > 0
    assert (call.calls, clock.flushed) == (2, 2)


def test_a_late_call_is_told_and_not_made_again_and_the_next_sleeps_longer() -> None:
    clock, call = Clock(1e-3, 1.2e-3, 1e-3), Counted()
    assert clock.by_device(call, [1]) == ([1], 3e-6, True)
    assert clock.by_device(call, [1]) == ([2], 3e-6, False)
    assert clock.by_device(call, [1]) == ([3], 3e-6, False)
    assert clock.slept == [SLEEP_SECONDS, MARGIN * 1e-3, MARGIN * 1.2e-3]


def test_after_a_first_call_that_loads_what_it_needs_the_sleep_is_short_again() -> None:
    clock, call = Clock(1.0), Counted()
    for _ in range(3):
        clock.by_device(call, [1])
    assert clock.slept == [SLEEP_SECONDS, LONGEST_SLEEP_SECONDS, SLEEP_SECONDS]


@pytest.mark.parametrize(("queueing", "calls"), [([], 2), ([1e-3], 3), ([1e-3, 1.0, 1.0], 3)])
def test_of_what_is_trusted_both_times_are_had_at_once(queueing: list[float], calls: int) -> None:
    clock, call = Clock(*queueing), Counted()
    outputs, device, wall = clock.time(call, [1])
    assert (outputs, device) == ([calls], 3e-6)
    assert wall > 0
    assert (call.calls, clock.flushed) == (calls, calls)
