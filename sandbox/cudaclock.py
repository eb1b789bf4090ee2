"""Timing of one call on a CUDA device, from inside the worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 2e-4, 2e-2
CYCLES_PER_SECOND = 3e9
"""Faster than any of today's devices, so that none sleeps for less."""
MARGIN = 1.5
"""How much longer the device sleeps than the host took to queue a call of before."""


Call = Callable[[list[Any]], Sequence[torch.Tensor]]


class CudaClock:
    """Runs a callable with a cold L2 and returns device or wall seconds.

    Device time: events around the call, queued behind a sleep that is longer than the host takes to queue it, so that
    it holds device work and no gap of the host's. A call that took longer is late, and the next one sleeps longer; who
    asks for it says on what inputs. Beyond `LONGEST_SLEEP_SECONDS`, as for a call that waits for the device itself,
    gaps are part of it. Wall time: from an idle device to its synchronisation, host work included.
    """

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        l2 = int(torch.cuda.get_device_properties(self.device).L2_cache_size)
        self._flush = torch.zeros(max(2 * l2, 1 << 26) // 4, device=self.device)
        self._sum = torch.zeros((), device=self.device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._sleep, self._raised = SLEEP_SECONDS, False

    def time(
        self, call: Call, inputs: list[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], float, float]:
        """Outputs of the last call, device seconds, wall seconds. For a callable that is trusted: only the last outputs
        are there to be looked at, and a late call is made again on the same inputs.
        """
        device, late = self.by_device(call, inputs)[1:]
        if late:
            device = self.by_device(call, inputs)[1]
        outputs, wall = self.by_wall(call, inputs)
        return outputs, device, wall

    def by_device(
        self, call: Call, inputs: list[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], float, bool]:
        """One call: its outputs, device seconds, and whether it was late. What follows a late one never is."""
        outputs, seconds, queued = self._device_seconds(call, inputs)
        wanted = sleep_for(queued, self._sleep)
        late = wanted > self._sleep and not self._raised
        if late:  # a first call also loads what the next ones have
            self._sleep = wanted
        elif self._raised:
            self._sleep = sleep_for(queued, SLEEP_SECONDS)
        self._raised = late
        return outputs, seconds, late

    def by_wall(
        self, call: Call, inputs: list[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], float]:
        """One call: its outputs and wall seconds."""
        self.flush()
        torch.cuda.synchronize(self.device)
        before = time.perf_counter()
        outputs = call(list(inputs))
        torch.cuda.synchronize(self.device)
        return outputs, time.perf_counter() - before

    def _device_seconds(
        self, call: Call, inputs: list[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], float, float]:
        """Outputs, seconds on the device, and for queueing the call on the host."""
        self.flush()
        torch.cuda._sleep(int(self._sleep * CYCLES_PER_SECOND))
        before = time.perf_counter()
        self._start.record()
        outputs = call(list(inputs))
        self._end.record()
        queued = time.perf_counter() - before
        torch.cuda.synchronize(self.device)
        return outputs, self._start.elapsed_time(self._end) * 1e-3, queued

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        torch.cuda.synchronize(self.device)

    def flush(self) -> None:
        """Read more than the L2 cache holds. What was written instead, what is timed would have to write back: sums of
        280 MB took 103 us on an H200, and 95 behind a read.
        """
        torch.sum(self._flush, dim=0, out=self._sum)


def sleep_for(queued: float, slept: float) -> float:
    """Seconds to sleep before calls, of which one took so long to queue behind a sleep of so many."""
    if queued <= slept:
        return slept
    return max(slept, min(MARGIN * queued, LONGEST_SLEEP_SECONDS))
