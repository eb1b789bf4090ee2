"""Advantages of an episode's action tokens. What tools wrote is no step: it is skipped, whatever its length.

Generalised advantage estimation (Schulman and others, 2016) with one lambda for the actor and another for the critic,
as value-calibrated PPO has it (Yuan and others, 2025); gamma is 1. All arrays are of one episode's action tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_LAMBDA = 0.95
"""Of the actor. Without it a run of short episodes, whose lambda by length would be negative, collapsed."""
LENGTH_FACTOR = 0.05


@dataclass(frozen=True)
class Outcome:
    """What an episode pays on its last action token, and what it is worth to go on after it.

    bootstrap: 0 where it ended; the critic's value where it was cut off by a limit that is not part of the task.
    """

    reward: float
    bootstrap: float = 0.0


def gae(values: Sequence[float], outcome: Outcome, decay: float) -> list[float]:
    """Advantages under lambda ``decay``. values: the critic's, before each action token."""
    advantages, after, found = 0.0, outcome.bootstrap, []
    last = len(values) - 1
    for step in range(last, -1, -1):
        reward = outcome.reward if step == last else 0.0
        delta = reward + after - values[step]
        advantages = delta + decay * advantages
        found.append(advantages)
        after = values[step]
    return found[::-1]


def lambda_of(length: int) -> float:
    """The actor's lambda for an episode of so many action tokens: 1 - 1 / (0.05 length), and no less than 0.95."""
    return max(LEAST_LAMBDA, 1.0 - 1.0 / (LENGTH_FACTOR * max(1, length)))


def returns(values: Sequence[float], outcome: Outcome, decay: float = 1.0) -> list[float]:
    """What the critic should have said: its lambda is 1 by default, so all that is paid later."""
    return [a + v for a, v in zip(gae(values, outcome, decay), values, strict=True)]


def whitening(count: float, total: float, squares: float) -> tuple[float, float]:
    """Mean and scale, of how many numbers, their sum and that of their squares, such that (x - mean) * scale has mean
    0 and standard deviation 1. Fewer than two stay as they are; where they do not differ, the scale is 0."""
    if count < 2:
        return 0.0, 1.0
    mean = total / count
    deviation = max(0.0, squares / count - mean * mean) ** 0.5
    return mean, 0.0 if deviation < 1e-6 else 1.0 / deviation
