"""Which schedule to try next: state of a search over one task's schedules, without tools or messages."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_agent_backend.agent.policies.search.surrogate import (
    available,
    expected_improvement,
    features,
    forecast,
    prior_of,
)
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.multiply_precision import as_coarse, products_of
from cuda_agent_backend.codegen.schedule_space import MOST, space_of

LEAST_GAIN = 0.0075
"""Expected improvement (a logarithm of seconds) below which no further judgement is worth its cost."""
INTERVAL = 3.92
"""Standard deviations from one end of a 95 % interval to the other."""
PATIENCE = 1.03
"""Without a model: what a round must bring over the best before it, or no further one is tried."""
NEAR = (0.95, 1.02)
"""Of the goal: where the best lies between these, one way or the other is a matter of a few percent, and a round that
brings nothing does not end the search."""


@dataclass
class Tuner:
    """Schedules by row in the order of promise, and what came of those that were tried.

    neighbours: rows of schedules that won on neighbours, with how much each counts. first: rows that come before the
    model. expected: by row, the logarithm of seconds (up to a constant) that the model begins with; by default it
    follows from order and neighbours.
    """

    schedules: Sequence[Schedule]
    neighbours: Mapping[int, float]
    first: int
    modelled: bool
    seed: int = 0
    least_gain: float = LEAST_GAIN
    expected: Sequence[float] | None = None
    _names: dict[int, str] = field(default_factory=dict)
    _times: dict[int, tuple[float, float]] = field(default_factory=dict)
    _failed: list[int] = field(default_factory=list)
    _ruled_out: set[int] = field(default_factory=set)
    _bests: list[float] = field(default_factory=list)

    @staticmethod
    def of(
        look: Mapping[str, Any],
        first: int,
        modelled: bool,
        seed: int,
        least_gain: float = LEAST_GAIN,
        space: int = MOST,
    ) -> Tuner:
        """From what `look` answered. space: the most schedules of it. Without the model's library the order is kept."""
        proposals = [Schedule.from_json(json.dumps(s)) for s in look["schedules"]]
        won: dict[Schedule, float] = {}
        for neighbour in look.get("neighbours", []):
            if "schedule" in neighbour:
                schedule = Schedule.from_json(json.dumps(neighbour["schedule"]))
                won.setdefault(schedule, 1.0 / (1.0 + float(neighbour["distance"])))
        modelled = modelled and available()
        rest = space_of(proposals).schedules(space) if modelled else proposals
        ordered = list(dict.fromkeys([*won, *rest]))
        return Tuner(
            ordered,
            dict(enumerate(won.values())),
            max(first, len(won) + 1),
            modelled,
            seed,
            least_gain,
        )

    def __post_init__(self) -> None:
        self._points = features(self.schedules)
        ranks = [max(0, row - len(self.neighbours)) for row in range(len(self.schedules))]
        if self.expected is None:
            self._prior = prior_of(self._points, ranks, self.neighbours)
        else:
            self._prior = np.asarray(self.expected, dtype=float)

    def schedule(self, row: int) -> list[dict[str, Any]]:
        """The schedule as a tool takes it."""
        made: list[dict[str, Any]] = json.loads(self.schedules[row].to_json())
        return made

    def made(self, row: int, candidate: str) -> None:
        """The schedule compiled; others may be the same candidate."""
        self._names[row] = candidate
        same = [r for r, name in self._names.items() if name == candidate and r in self._times]
        if same:
            self._times[row] = self._times[same[0]]
        elif any(name == candidate and r in self._failed for r, name in self._names.items()):
            self._failed.append(row)

    def failed(self, row: int) -> None:
        """The schedule does not fit or does not compile."""
        self._failed.append(row)

    def timed(self, candidate: str, speedup: Mapping[str, float]) -> None:
        """The candidate's speed-up over the baseline: the median and the ends of its interval, all above 0."""
        low, median, high = (max(float(speedup[n]), 1e-9) for n in ("low", "median", "high"))
        for row in self._rows(candidate):
            self._times[row] = -math.log(median), (math.log(high) - math.log(low)) / INTERVAL

    def spoiled(self, candidate: str) -> None:
        """The candidate did not run, or is wrong."""
        self._failed += self._rows(candidate)

    def too_inexact(self, candidate: str) -> set[str]:
        """Leave out what multiplies no more exactly than a wrong candidate, where something multiplies more exactly.
        Returns the candidates among it."""
        products = {row: products_of(schedule) for row, schedule in enumerate(self.schedules)}
        wrong = max((products[row] for row in self._rows(candidate)), default=0)
        coarse = as_coarse(products, wrong)
        if not coarse:
            return set()
        self._ruled_out |= coarse
        self._failed = [row for row in self._failed if row not in coarse]  # tiles like theirs work
        self._times = {row: time for row, time in self._times.items() if row not in coarse}
        self._bests.clear()
        others = {name for row, name in self._names.items() if row not in coarse}
        return {name for row, name in self._names.items() if row in coarse} - others

    def end_round(self) -> None:
        """Candidates that were wanted together have been timed."""
        self._bests.append(max((math.exp(-t) for t, _ in self._times.values()), default=0.0))

    def is_new(self, row: int) -> bool:
        """Whether the schedule was not compiled yet."""
        return row not in self._names

    def ready(self, wanted: Sequence[int]) -> list[str]:
        """Candidates to time now: while the order decides, all that are wanted; then the first only. Empty: compile."""
        if self.is_new(wanted[0]):
            return []
        alone = self.modelled and len(self._tried()) >= self.first
        made = [self._names[row] for row in wanted if not self.is_new(row)]
        return made[:1] if alone else list(dict.fromkeys(made))

    def wanted(self, goal: float, most: int) -> list[int]:
        """Up to ``most`` rows in the order in which to try them; none where nothing is expected to bring anything.

        goal: the speed-up that would have to be exceeded, whatever is known so far.
        """
        tried = self._tried()
        left = [row for row in range(len(self.schedules)) if row not in tried]
        if not self.modelled:
            return [] if self._no_progress() and not self._is_near(goal) else left[:most]
        if len(tried) < self.first:
            return left[: min(most, self.first - len(tried))]
        if not left or not self._times:
            return left[:most]
        found = forecast(self._points, self._prior, self._times, self._failed, self.seed)
        # where timings are noisy the largest of them is luck: what the model makes of it is to be exceeded
        best = min(-math.log(goal), *(float(found.mean[row]) for row in self._times))
        gains = expected_improvement(found, best)
        order = sorted(left, key=lambda row: (-round(float(gains[row]), 9), row))
        if gains[order[0]] < self.least_gain:
            return []
        near = [row for row in order if gains[row] >= 0.5 * gains[order[0]]]
        ready = [row for row in near if not self.is_new(row)]
        return list(dict.fromkeys([*ready[:1], *order]))[:most]

    def _tried(self) -> set[int]:
        return {*self._times, *self._failed, *self._ruled_out}

    def _rows(self, candidate: str) -> list[int]:
        return [row for row, name in self._names.items() if name == candidate]

    def _is_near(self, goal: float) -> bool:
        low, high = NEAR
        return low * goal <= max(self._bests, default=0.0) < high * goal

    def _no_progress(self) -> bool:
        """Whether the last round brought next to nothing over those before it; the first one, whether nothing works."""
        before, last = [0.0, *self._bests][-2:] if self._bests else (0.0, math.inf)
        return last <= before * PATIENCE
