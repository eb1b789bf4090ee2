"""How long a device sleeps before what is timed on it, and which call's outputs are had with its time."""

import random
from typing import Any

import pytest
import torch

from sandbox.timing.cuda_clock import (
    LONGEST_SLEEP_SECONDS,
    MARGIN,
    RECENT,
    SLEEP_SECONDS,
    CudaClock,
    sleep_for,
)


def test_the_sleep_outlasts_what_the_host_takes_to_queue_a_call() -> None:
    assert sleep_for([]) == SLEEP_SECONDS
    assert sleep_for([1e-4]) == SLEEP_SECONDS
    assert sleep_for([1e-4, 1e-3, 1e-4]) == MARGIN * 1e-3
    assert sleep_for([1.0]) == LONGEST_SLEEP_SECONDS


class Clock(CudaClock):
    """Of no device: a call on it takes 3 us, and so long to be queued as `queueing` says, then 10 us."""

    def __init__(self, *queueing: float) -> None:
        self.device = torch.device("cuda", 0)
        self._rest()
        self.flushed, self.queueing = 0, [*queueing]
        self.slept: list[float] = []

    def flush(self) -> None:
        self.flushed += 1

    def _device_seconds(self, call: Any, inputs: list[Any]) -> tuple[Any, float, float, bool]:
        self.flush()
        self.slept.append(self._sleep)
        queued = self.queueing.pop(0) if self.queueing else 1e-5
        return call(inputs), 3e-6, queued, queued <= self._sleep


class Waiting(Clock):
    """Whose calls are queued once the device has slept."""

    def _device_seconds(self, call: Any, inputs: list[Any]) -> tuple[Any, float, float, bool]:
        self.queueing = [self._sleep + 1e-4]
        return super()._device_seconds(call, inputs)


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


@pytest.mark.parametrize("loading", [1, 2, 3])
def test_after_first_calls_that_load_what_they_need_the_sleep_is_short_again(loading: int) -> None:
    clock, call = Clock(*[1.0] * loading), Counted()
    for _ in range(loading + 2):
        clock.by_device(call, [1])
    assert clock.slept[:2] == [SLEEP_SECONDS, LONGEST_SLEEP_SECONDS]
    assert clock.slept[-1] == SLEEP_SECONDS


def test_what_took_longest_to_queue_counts_while_it_is_recent() -> None:
    clock, call = Clock(1e-3, 1e-3, *[1e-5] * 20), Counted()
    for _ in range(RECENT + 3):
        clock.by_device(call, [1])
    assert clock.slept == [SLEEP_SECONDS, *[MARGIN * 1e-3] * (RECENT + 1), SLEEP_SECONDS]


@pytest.mark.parametrize("seed", range(20))
def test_one_of_five_in_random_order_that_takes_longer_is_late_once(seed: int) -> None:
    shuffle = random.Random(seed).shuffle
    clock, order, late = Clock(), [1e-3, *[1e-5] * 4], 0
    for _ in range(60):
        shuffle(order)
        for queued in order:
            clock.queueing = [queued, queued]
            while clock.by_device(Counted(), [1])[2]:
                late += 1
    assert late == 1


def test_a_call_that_waits_for_the_device_does_not_make_the_next_ones_sleep_longer() -> None:
    clock = Waiting()
    found = [clock.by_device(Counted(), [1])[2] for _ in range(6)]
    assert found == [True, False] * 3
    assert clock.slept[::2] == [SLEEP_SECONDS] * 3


@pytest.mark.parametrize(("queueing", "calls"), [([], 2), ([1e-3], 3), ([1e-3, 1.0, 1.0], 3)])
def test_of_what_is_trusted_both_times_are_had_at_once(queueing: list[float], calls: int) -> None:
    clock, call = Clock(*queueing), Counted()
    outputs, device, wall = clock.time(call, [1])
    assert (outputs, device) == ([calls], 3e-6)
    assert wall > 0
    assert (call.calls, clock.flushed) == (calls, calls)
