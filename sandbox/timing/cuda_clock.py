"""Timing of one call on a CUDA device, from inside the worker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 2e-4, 2e-2
CYCLES_PER_SECOND = 3e9
"""Faster than any of today's devices, so that none sleeps for less: at 2 GHz for half as long again."""
MARGIN = 1.5
"""How much longer the device sleeps than the host took to queue a call of before."""
RECENT = 9
"""Calls in time, of before, that count: each of five contestants is among so many, in rounds in random order."""


Call = Callable[[list[Any]], Sequence[torch.Tensor]]


class CudaClock:
    """Runs a callable with a cold L2 and returns device or wall seconds.

    Device time: events around the call, queued behind a sleep that is longer than the host takes to queue it, so that
    it holds device work and no gap of the host's. A call is late if the device awoke before it was queued, and the next
    one, whoever's it is, sleeps longer; who asks for it says on what inputs. Of a call that outlasts that too, as one
    that waits for the device itself, gaps are part: it is late every time, and who repeats late ones makes it twice.
    Wall time: from an idle device to its synchronisation, host work included.
    """

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        l2 = int(torch.cuda.get_device_properties(self.device).L2_cache_size)
        self._flush = torch.zeros(max(2 * l2, 1 << 26) // 4, device=self.device)
        self._sum = torch.zeros((), device=self.device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._rest()

    def _rest(self) -> None:
        """Before the first call."""
        self._sleep, self._raised = SLEEP_SECONDS, False
        self._recent = deque[float](maxlen=RECENT)

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
        outputs, seconds, queued, in_time = self._device_seconds(call, inputs)
        late = not in_time and not self._raised
        if in_time:
            self._recent.append(queued)
        # A late call, as a first one that loads what the next have, counts for the one that follows, and no other.
        self._sleep = sleep_for([queued] if late else self._recent)
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
    ) -> tuple[Sequence[torch.Tensor], float, float, bool]:
        """Outputs, seconds on the device, those for queueing the call on the host, and whether the device slept until
        it was queued."""
        self.flush()
        before = time.perf_counter()
        torch.cuda._sleep(int(self._sleep * CYCLES_PER_SECOND))
        self._start.record()
        outputs = call(list(inputs))
        self._end.record()
        queued = time.perf_counter() - before
        in_time = not self._start.query()
        torch.cuda.synchronize(self.device)
        return outputs, self._start.elapsed_time(self._end) * 1e-3, queued, in_time

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        torch.cuda.synchronize(self.device)

    def flush(self) -> None:
        """Read more than the L2 cache holds. What was written instead, what is timed would have to write back: sums of
        280 MB took 103 us on an H200, and 95 behind a read.
        """
        torch.sum(self._flush, dim=0, out=self._sum)


def sleep_for(queueing: Iterable[float]) -> float:
    """Seconds to sleep before calls like those that the host took so many seconds each to queue."""
    longest = MARGIN * max(queueing, default=0.0)
    return max(SLEEP_SECONDS, min(longest, LONGEST_SLEEP_SECONDS))
