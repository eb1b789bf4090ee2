"""The rule of whole-graph acceptance, a pure decision over measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cuda_agent_backend.runtime.clocks import Samples
from sandbox.timing.decision import INTERIM_CONFIDENCE, Interval, interval, loses, ratios

LOWER_BOUND, MEDIAN = 1.0, 1.005
"""A set of kernels is accepted when the whole graph's speed-up is proven to be at least this: never slower."""
LAYOUTS_MEDIAN = 1.02
"""What eager's layouts must bring by one clock. Kernels are searched for one choice of layouts, so it should not be
made by chance."""
REPLAY_MEDIAN = 1.05
"""What replaying a graph must bring by one clock: it keeps memory for itself."""
RULE = 5
"""Changes whenever a decision could come out differently; what another rule decided is measured again."""
KEPT = ("use", "reason", "speedup", "trials", "eager_layouts", "replay", "replayed")


@dataclass(frozen=True)
class Measurement:
    """One set of kernels in the graph: speed-up over Inductor with its 95 % interval, and accuracy.

    median, low, high: of device time on cuda, of wall time on cpu. wall: on cuda, of wall time. A graph of many small
    kernels waits for the host, which hides what they take, until it runs from a CUDA graph or beside other work.
    error_ratio: the worst error over eager's; None where an output is not finite, as under Inductor, and eager's is.
    on_real_inputs: timed on what the model was called with.
    """

    median: float
    low: float
    high: float
    accurate: bool
    reason: str = ""
    error_ratio: float | None = None
    wall: Interval | None = None
    on_real_inputs: bool = False

    @staticmethod
    def failed(reason: str, error_ratio: float | None = None) -> Measurement:
        """What cannot be used, whatever its speed."""
        return Measurement(0.0, 0.0, 0.0, False, reason, error_ratio)

    @property
    def clocks(self) -> list[Interval]:
        """What each clock says of the speed-up."""
        own = Interval(self.median, self.low, self.high, 0)
        return [own, self.wall] if self.wall else [own]

    @property
    def acceptable(self) -> bool:
        """Whether the graph is not less accurate, faster by one clock, and not slower by the other."""
        gains = any(c.low >= LOWER_BOUND and c.median >= MEDIAN for c in self.clocks)
        return self.accurate and gains and not any(map(loses, self.clocks))

    @property
    def why_not(self) -> str:
        """Why it is not acceptable."""
        if self.reason:
            return self.reason
        text = f"the whole graph is {self.median:.3f}x with it ({self.low:.3f} to {self.high:.3f})"
        wall = self.wall
        return (
            f"{text}, by the wall clock {wall.median:.3f}x ({wall.low:.3f} to {wall.high:.3f})"
            if wall
            else text
        )


@dataclass(frozen=True)
class Acceptance:
    """`use`: the kernels (key digests) to put in; `speedup` is that of the whole graph with these, 1 with none.

    `reason` says why the others are left out. `final`: no trial was cut short, so the decision may be kept.
    `eager_layouts`: convolutions keep eager's layouts, which is what was measured where there are no kernels.
    `replay`: the graph is replayed from a CUDA graph; `replayed`: what that brings without kernels, None if it was not
    measured. `speedup` is then that of the kernels among such graphs.
    """

    use: tuple[str, ...]
    reason: str = ""
    final: bool = True
    speedup: Measurement | None = None
    trials: int = 0
    eager_layouts: bool = False
    replay: bool = False
    replayed: Measurement | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"use": list(self.use)}


def decision_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of an acceptance, as JSON values."""
    return {name: value for name, value in answer.items() if name in KEPT}


def gains_at_least(found: Measurement, least: float) -> bool:
    """Whether what was measured is acceptable, and at least so much faster by one clock."""
    return found.acceptable and max(c.median for c in found.clocks) >= least


def decide_layouts(found: Measurement) -> Acceptance:
    """Whether a graph keeps eager's layouts, by its measurement with them."""
    better = gains_at_least(found, LAYOUTS_MEDIAN)
    return Acceptance((), "" if better else found.why_not, True, found, 1, better)


def decide(
    kernels: Sequence[str],
    gain: Mapping[str, float],
    measure: Callable[[Sequence[str]], Measurement],
    trials_left: Callable[[], int],
) -> Acceptance:
    """Start with all kernels and drop the least promising until the rest is acceptable.

    gain: the seconds, or any measure of them, that each kernel promises. measure: may be costly; called once per set.
    trials_left: for how many more calls of it there is time; the first one is made in any case.
    """
    left = sorted(kernels, key=lambda kernel: gain.get(kernel, 0.0), reverse=True)
    reason, trials, skipped = "", 0, False
    while left:
        if trials and trials_left() < 1:
            return Acceptance((), "the budget ended before the whole graph was measured", False)
        found = measure(left)
        trials += 1
        if found.acceptable:
            return Acceptance(tuple(sorted(left)), reason, True, found, trials)
        reason = found.why_not
        keep = next_count(len(left), trials_left())
        skipped = skipped or keep < len(left) - max(1, len(left) // 4)
        left = left[:keep]
    return Acceptance((), reason, not skipped, None, trials)


def next_count(count: int, trials: int) -> int:
    """How many of `count` kernels to try next: a quarter less, or as few as lead to one in the trials that are left.

    Never less than a third of them, as one kernel of many seldom moves a whole graph.
    """
    step = count - max(1, count // 4)
    hurried = int(count ** (1 - 1 / max(trials, 1)))
    return min(step, max(hurried, -(-count // 3)))


def is_decided(samples: Samples, least: float) -> bool:
    """Whether more rounds cannot be expected to change what is decided: an interim look.

    samples: of "plain" and "spliced", by clock. least: the median that is asked for, by one clock.
    """
    found = [
        interval(ratios(own["plain"], own["spliced"]), INTERIM_CONFIDENCE)
        for own in samples.values()
    ]
    return all(one.low > least for one in found) or any(one.high < LOWER_BOUND for one in found)
