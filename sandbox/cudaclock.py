"""Timing of one call on a CUDA device, from inside the worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SLEEP_CYCLES = 400_000
"""About 0.2 ms: longer than it takes the host to queue a call, so that no gap of the host's is timed."""


class CudaClock:
    """Runs a callable with a cold L2 and returns device and wall seconds.

    Device time: events around the call, queued behind a short sleep so that it holds device work
    only. Wall time: a second call, from an idle device to its synchronisation, host work included.
    """

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        l2 = int(torch.cuda.get_device_properties(self.device).L2_cache_size)
        self._flush = torch.empty(max(2 * l2, 1 << 26), dtype=torch.uint8, device=self.device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def time(
        self, call: Callable[[list[Any]], Sequence[torch.Tensor]], inputs: list[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], float, float]:
        """Outputs of the last of two calls, device seconds, wall seconds."""
        self.flush()
        torch.cuda._sleep(SLEEP_CYCLES)
        self._start.record()
        outputs = call(list(inputs))
        self._end.record()
        torch.cuda.synchronize(self.device)
        device = self._start.elapsed_time(self._end) * 1e-3
        del outputs
        self.flush()
        torch.cuda.synchronize(self.device)
        before = time.perf_counter()
        outputs = call(list(inputs))
        torch.cuda.synchronize(self.device)
        return outputs, device, time.perf_counter() - before

    def flush(self) -> None:
        """Overwrite more than the L2 cache."""
        self._flush.zero_()
