"""How long a device sleeps before what is timed on it."""

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
    """Of no device: a call on it takes 3 us."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        self._sleep = SLEEP_SECONDS
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1

    def _device_seconds(self, call: Any, inputs: list[Any]) -> tuple[float, float]:
        self.flush()
        call(inputs)
        return 3e-6, 1e-5


def test_without_wall_time_there_is_half_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    calls: list[list[Any]] = []

    def call(inputs: list[Any]) -> list[Any]:
        calls.append(inputs)
        return ["output"]

    clock = Clock()
    assert clock.time(call, [1], wall=False) == ((), 3e-6, 0.0)
    assert (len(calls), clock.flushed) == (1, 1)
    outputs, device, wall = clock.time(call, [1])
    assert (outputs, device) == (["output"], 3e-6)
    assert wall > 0
    assert (len(calls), clock.flushed) == (3, 3)
