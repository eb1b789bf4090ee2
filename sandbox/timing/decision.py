"""From raw samples to a decision: is the candidate faster than the baselines, and how sure is that?

Samples are taken in rounds; in a round each contestant runs once, in random order, on the same
input set and with a cold cache. What slows the machine down slows a whole round, so only ratios
within a round (pairs) are used, never means over all of them.

The interval is that of the median by order statistics: of n independent pairs, the number below
the true median is binomial(n, 1/2) whatever the distribution, so the bounds hold without assuming
a shape, and the heavy tail that a busy machine adds moves them little. A bootstrap of the median
of a few dozen pairs has no such guarantee and costs more.

Some kernels take one of two times, by where their memory happens to lie, and change between them in the middle of a
race. The control of such a baseline is wide however quiet the machine is, and medians say nothing. A candidate that is
faster at its worst than the baseline at its best is faster all the same (`report_at_best`).

Looking several times and stopping early makes false alarms likelier; interim looks therefore use
`INTERIM_CONFIDENCE`, only the last one `CONFIDENCE`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

THRESHOLD = 1.05
CONFIDENCE = 0.95
INTERIM_CONFIDENCE = 0.995
MIN_PAIRS = 8
LEAST_MEDIAN = 0.99
"""By a clock that does not decide. One wrapper calls all, so wall times of small kernels are equal, and to ask for a
median of 1 would be to toss a coin."""
AA_BIAS = 1.03
"""A baseline that differs from itself by more than this shows a fault of the measurement."""
AA_WIDTH = 1.12
"""Upper over lower bound of the A/A interval beyond which the machine is too noisy to judge on."""


@dataclass(frozen=True)
class Interval:
    """A ratio of times (baseline over contestant; above 1 is faster) with its confidence bounds."""

    median: float
    low: float
    high: float
    pairs: int

    def to_dict(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Control:
    """The baseline against itself, before and after: `quiet` says that the timings can be
    trusted. scatters: they cannot, but only since it takes now longer and now less.
    """

    interval: Interval
    quiet: bool
    reason: str
    scatters: bool = False


@dataclass(frozen=True)
class SpeedReport:
    """What the samples say. `seconds`: median per contestant. `over`: the candidate against each.

    `baseline` is the faster one; `speedup` is over it. `wins` is the rule of promotion: the lower
    bound over *every* baseline exceeds the threshold, hence also that over the faster one. `wall`: the
    speed-up by wall time, where another clock decides and this one forbids it.
    """

    seconds: dict[str, float]
    over: dict[str, Interval]
    baseline: str
    control: Control | None
    wins: bool
    wall: Interval | None = None

    @property
    def speedup(self) -> Interval:
        """The speed-up over the faster baseline."""
        return self.over[self.baseline]

    def beats(self, baseline: str, threshold: float = THRESHOLD) -> bool:
        """Whether the lower bound over that baseline exceeds the threshold."""
        return baseline in self.over and self.over[baseline].low > threshold

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def order_bounds(n: int, confidence: float) -> tuple[int, int]:
    """Positions (from 0) of the sorted samples that bound the median with at least `confidence`.

    The widest pair (first and last) where n is too small for it.
    """
    tail, total = (1 - confidence) / 2, 2**n
    low, outside = 0, 1  # of 2**n outcomes, those with at most `low` samples below the median
    for below in range(1, (n + 1) // 2):
        outside += math.comb(n, below)
        if outside / total > tail:
            break
        low = below
    return low, n - 1 - low


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Median and bounds of positive ratios. Raises ValueError when there are none."""
    if not ratios:
        raise ValueError("no samples")
    ordered = sorted(ratios)
    low, high = order_bounds(len(ordered), confidence)
    return Interval(statistics.median(ordered), ordered[low], ordered[high], len(ordered))


def ratios(slower: Sequence[float | None], faster: Sequence[float | None]) -> list[float]:
    """Ratios within the rounds where both ran. A time of zero is a broken clock: ValueError."""
    pairs = zip(slower, faster, strict=True)
    found = [(a, b) for a, b in pairs if a is not None and b is not None]
    if any(a <= 0 or b <= 0 for a, b in found):
        raise ValueError("a sample is not a positive time")
    return [a / b for a, b in found]


def loses(found: Interval) -> bool:
    """Whether a clock that does not decide says that the candidate is slower: proven, or by more than its scatter."""
    return found.high < 1 or found.median < LEAST_MEDIAN


def is_wide(found: Interval) -> bool:
    """Whether an A/A interval says too little to judge on."""
    return found.high / found.low > AA_WIDTH


def is_quiet(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether more pairs cannot be expected to show that a baseline differs from itself: an interim look."""
    pairs = ratios(first, second)
    if len(pairs) < MIN_PAIRS:
        return False
    found = interval(pairs, INTERIM_CONFIDENCE)
    return found.low > 1 / AA_BIAS and found.high < AA_BIAS


def is_steady(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether more pairs cannot be expected to show that a baseline scatters too much to judge on: an interim look."""
    pairs = ratios(first, second)
    return len(pairs) >= MIN_PAIRS and not is_wide(interval(pairs, INTERIM_CONFIDENCE))


def control(first: Sequence[float], second: Sequence[float]) -> Control:
    """The A/A control from two runs of the baseline in each round."""
    found = interval(ratios(first, second))
    if found.pairs < MIN_PAIRS:
        return Control(found, False, f"only {found.pairs} control pairs")
    if found.low > AA_BIAS or found.high < 1 / AA_BIAS:
        return Control(found, False, f"the baseline differs from itself by {found.median - 1:+.1%}")
    if is_wide(found):
        width = found.high / found.low - 1
        return Control(
            found, False, f"the machine is too noisy (control interval {width:.0%} wide)", True
        )
    return Control(found, True, "")


def report(
    samples: Mapping[str, Sequence[float | None]],
    *,
    candidate: str = "candidate",
    aa: Control | None = None,
    confidence: float = CONFIDENCE,
) -> SpeedReport:
    """The report on rounds of samples in seconds; None where a contestant sat out a round.

    Every key other than `candidate` is a baseline; at least one is needed.
    """
    baselines = [name for name in samples if name != candidate]
    if not baselines:
        raise ValueError("no baseline")
    over = {
        name: interval(ratios(samples[name], samples[candidate]), confidence) for name in baselines
    }
    faster = min(baselines, key=lambda name: over[name].median)
    sure = all(found.pairs >= MIN_PAIRS for found in over.values())
    wins = sure and all(found.low > THRESHOLD for found in over.values())
    return SpeedReport(_medians(samples), over, faster, aa, wins)


def at_best(baseline: Sequence[float | None], contestant: Sequence[float | None]) -> Interval:
    """The contestant against the baseline's fastest decile, whatever else the baseline takes.

    low: with the contestant's slowest decile, high: with its fastest. Pairs play no part. ValueError without samples.
    """
    found = [[seconds for seconds in own if seconds is not None] for own in (baseline, contestant)]
    if min(map(len, found)) < MIN_PAIRS or min(map(min, found)) <= 0:
        raise ValueError("too few samples, or one that is not a positive time")
    (best, *_), mine = (statistics.quantiles(own, n=10, method="inclusive") for own in found)
    pairs = min(map(len, found))
    return Interval(best / statistics.median(found[1]), best / mine[-1], best / mine[0], pairs)


def report_at_best(
    samples: Mapping[str, Sequence[float | None]], aa: Control, *, candidate: str = "candidate"
) -> SpeedReport:
    """As `report`, for a control that scatters: the candidate against each baseline at its best (see `at_best`).

    samples: not in rounds, so those of the control may be among their baseline's.
    """
    over = {
        name: at_best(own, samples[candidate]) for name, own in samples.items() if name != candidate
    }
    faster = min(over, key=lambda name: over[name].median)
    wins = all(found.low > THRESHOLD for found in over.values())
    return SpeedReport(_medians(samples), over, faster, aa, wins)


def _medians(samples: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    return {
        name: statistics.median([value for value in values if value is not None])
        for name, values in samples.items()
    }


def enough(samples: Mapping[str, Sequence[float | None]]) -> bool:
    """Whether each contestant ran often enough to say anything of it."""
    return min(sum(v is not None for v in values) for values in samples.values()) >= MIN_PAIRS


def settled(samples: Mapping[str, Sequence[float | None]], threshold: float = THRESHOLD) -> bool:
    """Whether more rounds cannot be expected to change the answer: an interim look."""
    if not enough(samples):
        return False
    found = report(samples, confidence=INTERIM_CONFIDENCE).over.values()
    return all(over.low > threshold for over in found) or any(
        over.high < threshold for over in found
    )
