"""Times two forms of a whole graph in turn, and says how much faster one is by each clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cuda_agent_backend.acceptance.rule import LOWER_BOUND, is_decided
from cuda_agent_backend.runtime.clocks import Samples, clock_of, paired_samples, sample_rounds
from sandbox.timing.decision import Interval, interval, ratios

Call = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""A compiled graph: from its inputs to its outputs."""

ROUNDS, ROUND_LIMIT_S = 60, 20.0
LONGER = 3
"""Times as many rounds follow where the wall clock cannot tell."""


def measure_speedups(
    plain: Call, spliced: Call, inputs: Sequence[torch.Tensor], target: str, seed: int, least: float
) -> dict[str, Interval]:
    """The speed-up of ``spliced`` over ``plain``, by the clock's name: "wall", on cuda also "device".

    Where the wall clock neither proves nor rules out a loss, and the other proves none, it is asked for longer.
    least: the median that is asked for, by one clock.
    """
    calls = {"plain": lambda: plain(inputs), "spliced": lambda: spliced(inputs)}
    enough = functools.partial(is_decided, least=least)
    samples = take_samples(calls, target, ROUNDS, seed, enough)
    found = _speedups(samples)
    lost = any(one.high < LOWER_BOUND for one in found.values())
    if "device" not in found or found["wall"].median >= 1 or lost:
        return found
    more = take_samples(calls, target, LONGER * ROUNDS, seed + 1)
    return _speedups(
        {
            clock: {name: own + more[clock][name] for name, own in by_name.items()}
            for clock, by_name in samples.items()
        }
    )


def take_samples(
    calls: Mapping[str, Callable[[], Any]],
    target: str,
    rounds: int,
    seed: int,
    enough: Callable[[Samples], bool] | None = None,
) -> Samples:
    """Seconds by clock and call. On cuda each call is made after the L2 was flushed, and ``enough`` ends it."""
    if target == "cuda":
        clock = clock_of("cuda", ())
        return sample_rounds(
            calls, clock, rounds=rounds, seconds=ROUND_LIMIT_S, seed=seed, enough=enough
        )
    return {"wall": paired_samples(calls, rounds=rounds, limit_s=ROUND_LIMIT_S, seed=seed)}


def _speedups(samples: Samples) -> dict[str, Interval]:
    return {clock: interval(ratios(own["plain"], own["spliced"])) for clock, own in samples.items()}
