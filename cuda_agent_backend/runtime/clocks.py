"""Seconds of one call with cold caches, and rounds of paired samples."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sandbox.timing.cold_cache import ColdCache

Call = Callable[[], Any]
Samples = dict[str, dict[str, list[float]]]
"""By kind ("device", "wall"), then by contestant."""
LEAST_ROUNDS, FIRST_LOOK = 10, 20
LEAST_CALLS = 50
WARM_UP = 3


class Clock(Protocol):
    """What times one call."""

    def time(self, call: Call) -> tuple[float, float]:
        """Device and wall seconds."""

    def device_s(self, call: Call) -> float:
        """Device seconds, of one call where that suffices."""


class CpuClock:
    """Wall time after the model's tensors were evicted from the caches. Both figures are the same."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._cold = list(tensors), ColdCache()

    def time(self, call: Call) -> tuple[float, float]:
        """See `Clock`."""
        self._cold.evict(self._tensors)
        before = time.perf_counter()
        outputs = call()
        seconds = time.perf_counter() - before
        del outputs
        return seconds, seconds

    def device_s(self, call: Call) -> float:
        """See `Clock`."""
        return self.time(call)[0]


class GpuClock:
    """Two calls, each after the L2 was flushed: one between events, one by the wall clock (see `CudaClock`)."""

    def __init__(self) -> None:
        from sandbox.timing.cuda_clock import CudaClock

        self._clock = CudaClock()

    def time(self, call: Call) -> tuple[float, float]:
        """See `Clock`."""
        outputs, device, wall = self._clock.time(lambda _: call(), [])
        del outputs
        return device, wall

    def device_s(self, call: Call) -> float:
        """See `Clock`. A late call, which gaps of the host are part of, is made again."""
        seconds, late = self._clock.by_device(lambda _: call(), [])[1:]
        return self._clock.by_device(lambda _: call(), [])[1] if late else seconds


def clock_of(target: str, cold: Sequence[Tensor]) -> Clock:
    """cold: what is evicted from the caches before each call on cpu."""
    return GpuClock() if target == "cuda" else CpuClock(cold)


def least_call(target: str) -> float:
    """Device seconds of a call that writes one number: no call takes less."""
    sink = torch.zeros(1, device=target)
    clock = clock_of(target, [sink])
    return min(clock.time(lambda: [sink.zero_()])[0] for _ in range(LEAST_CALLS))


def sample_rounds(
    contestants: Mapping[str, Call],
    clock: Clock,
    *,
    rounds: int,
    seconds: float,
    seed: int,
    enough: Callable[[Samples], bool] | None = None,
) -> Samples:
    """In each round every contestant runs once, in random order. It ends after so many rounds or seconds, whichever
    comes first, but not before ten rounds. enough: whether it ends; asked after `FIRST_LOOK` rounds, and after twice
    as many each time."""
    for name in [*contestants] * WARM_UP:
        contestants[name]()
    order = list(contestants)
    samples: Samples = {kind: {name: [] for name in order} for kind in ("device", "wall")}
    shuffle = random.Random(seed).shuffle
    deadline, look = time.monotonic() + seconds, FIRST_LOOK
    for done in range(max(rounds, LEAST_ROUNDS)):
        if done >= LEAST_ROUNDS and time.monotonic() > deadline:
            break
        if done == look:
            look *= 2
            if enough is not None and enough(samples):
                break
        shuffle(order)
        for name in order:
            device, wall = clock.time(contestants[name])
            samples["device"][name].append(device)
            samples["wall"][name].append(wall)
    return samples


def paired_samples(
    contestants: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    limit_s: float,
    device: str = "cpu",
    warm_up: int = 3,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round: in a round every one runs once, in random order.

    It ends after ``rounds`` rounds or ``limit_s`` seconds, whichever comes first, but not before 8 rounds. ``progress``
    gets the part that is done, 0 to 1.
    """
    wait = torch.cuda.synchronize if device == "cuda" else _no_wait
    order = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in order}
    for name in order * warm_up:
        contestants[name]()
    shuffle = random.Random(seed).shuffle
    started = time.perf_counter()
    for done in range(rounds):
        part = max(done / rounds, (time.perf_counter() - started) / limit_s)
        if part >= 1 and done >= 8:
            break
        if progress:
            progress(min(part, 1.0))
        shuffle(order)
        for name in order:
            wait()
            begin = time.perf_counter()
            contestants[name]()
            wait()
            samples[name].append(time.perf_counter() - begin)
    if progress:
        progress(1.0)
    return samples


def _no_wait() -> None:
    return None
