"""Alarms: what a collapsed run looks like, decided from its figures alone.

The paper's runs without rejection fine-tuning collapsed after 17 steps (entropy rose, reward fell to the worst), those
without value pretraining had a negative explained variance and ever more episodes cut off by length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Limits:
    """When a figure alarms. window: steps that are looked at together.

    reward_drop: how far the mean reward of a window may lie below the best window's. entropy: the least mean entropy of
    a choice, in nats, and how many times the first window's it may become. ratio: how far the mean importance ratio may
    be from 1. gap: of log-probabilities between engine and trainer. cut_off: share of episodes cut off by length.
    mismatched, failed: shares of episodes left out, or lost to a failing environment. variance: the least explained
    variance, once there is a critic, after ``patience`` windows.
    """

    window: int = 5
    reward_drop: float = 1.0
    least_entropy: float = 1e-3
    entropy_growth: float = 3.0
    ratio: float = 0.5
    gap: float = 0.05
    cut_off: float = 0.25
    mismatched: float = 0.5
    failed: float = 0.5
    variance: float = -0.5
    patience: int = 4


@dataclass(frozen=True)
class Alarm:
    """What is wrong, in words, with the figure and what it means. since: the first step of the window that shows it."""

    name: str
    reason: str
    since: int


def alarm_of(steps: Sequence[Figures], limits: Limits) -> Alarm | None:
    """The first thing that is wrong at the end of a run so far. steps: the figures of each, from its first."""
    window = limits.window
    if steps and (broken := _not_a_number(steps[-1])):
        return Alarm("not a number", f"{broken} is not a number", len(steps) - 1)
    if len(steps) < window:
        return None
    since = len(steps) - window
    for name, reason in _checks(steps, limits):
        if reason:
            return Alarm(name, reason, since)
    return None


def _checks(steps: Sequence[Figures], limits: Limits) -> list[tuple[str, str]]:
    last, window = steps[-limits.window :], limits.window
    reward, entropy = _mean(last, "reward"), _mean(last, "entropy")
    best = max(_means(steps, "reward", window), default=math.nan)
    first = _mean(steps[:window], "entropy")
    ratio, gap = _mean(last, "ratio"), _mean(last, "engine_gap")
    variance = _mean(last, "explained_variance")
    late = len(steps) >= limits.patience * window
    return [
        (
            "reward",
            _said(
                reward < best - limits.reward_drop,
                f"the reward fell from {best:.2f} to {reward:.2f}",
            ),
        ),
        (
            "entropy",
            _said(entropy < limits.least_entropy, f"the entropy is {entropy:.2g}: no trials"),
        ),
        (
            "entropy",
            _said(
                entropy > limits.entropy_growth * first,
                f"the entropy rose from {first:.2g} to {entropy:.2g}",
            ),
        ),
        (
            "ratio",
            _said(abs(ratio - 1) > limits.ratio, f"the mean importance ratio is {ratio:.2f}"),
        ),
        (
            "engine gap",
            _said(gap > limits.gap, f"engine and trainer differ by {gap:.2g} in log-probability"),
        ),
        ("cut off", _share(last, "cut_off", limits.cut_off, "are cut off by length")),
        (
            "mismatched",
            _share(
                last,
                "mismatched",
                limits.mismatched,
                "are left out, as the engine saw them otherwise",
            ),
        ),
        (
            "environment",
            _share(last, "failed", limits.failed, "were lost, as their environment failed"),
        ),
        (
            "critic",
            _said(
                late and variance < limits.variance,
                f"the critic's explained variance is {variance:.2f}",
            ),
        ),
    ]


def _share(last: Sequence[Figures], name: str, most: float, what: str) -> str:
    share = _mean(last, name)
    return _said(share > most, f"{share:.0%} of episodes {what}")


def _said(wrong: bool, reason: str) -> str:
    return reason if wrong else ""


def _mean(steps: Sequence[Figures], name: str) -> float:
    """NaN, which is neither above nor below anything, where no step has the figure."""
    values = [step[name] for step in steps if name in step]
    return sum(values) / len(values) if values else math.nan


def _means(steps: Sequence[Figures], name: str, window: int) -> list[float]:
    means = [_mean(steps[n : n + window], name) for n in range(len(steps) - window + 1)]
    return [mean for mean in means if not math.isnan(mean)]


def _not_a_number(figures: Figures) -> str:
    return next((name for name, value in figures.items() if not math.isfinite(value)), "")
