"""Rounds of samples: how many there are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from cuda_agent_backend.bench.measurement import INDUCTOR, OURS, is_settled
from cuda_agent_backend.runtime.clocks import Call, Samples, sample_rounds


class Fixed:
    """A clock of seconds that are known."""

    def __init__(self, seconds: Callable[[str], float]) -> None:
        self._seconds = seconds

    def time(self, call: Call) -> tuple[float, float]:
        own = self._seconds(call())
        return own, 2 * own


def taken(
    seconds: Callable[[str], float], rounds: int, enough: Callable[[Samples], bool] | None
) -> Samples:
    calls: dict[str, Call] = {name: lambda name=name: name for name in (OURS, INDUCTOR)}
    return sample_rounds(calls, Fixed(seconds), rounds=rounds, seconds=60.0, seed=1, enough=enough)


def steady(name: str) -> float:
    return 1.0 if name == OURS else 1.5


@pytest.mark.parametrize(("rounds", "expected"), [(3, 10), (15, 15), (60, 20)])
def test_rounds_end_once_their_ratios_are_known(rounds: int, expected: int) -> None:
    samples = taken(steady, rounds, is_settled)
    assert samples["device"] == {OURS: [1.0] * expected, INDUCTOR: [1.5] * expected}
    assert samples["wall"] == {OURS: [2.0] * expected, INDUCTOR: [3.0] * expected}


def test_rounds_go_on_while_their_ratios_scatter() -> None:
    scattered = random.Random(2)
    samples = taken(lambda name: steady(name) * scattered.uniform(1, 1.2), 60, is_settled)
    assert len(samples["device"][OURS]) == 60


def test_looks_are_as_far_apart_as_there_were_rounds() -> None:
    looks = itertools.count()
    samples = taken(steady, 100, lambda _: next(looks) == 1)
    assert len(samples["device"][OURS]) == 40 and next(looks) == 2
    assert len(taken(steady, 100, None)["device"][OURS]) == 100
