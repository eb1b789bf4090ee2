"""Judgements answered from a table: what the judge said once, as often as anybody asks, in microseconds."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from sandbox.judge.glance import MOST_GLANCES, looks, rounds_of
from trainer.world.rows import CORRECT, Row, Table


@dataclass(frozen=True)
class Judgement:
    """What one judgement says of a row. status: as a profile's. low, speed, high: the least, the median and the largest
    speed-up over the faster baseline among the pairs that were drawn; 0 where the candidate does not work. seconds: of
    judging it."""

    row: int
    status: str
    works: bool
    low: float
    speed: float
    high: float
    seconds: float


class Replay:
    """Judges rows of a table. Each judgement draws anew from the timings that were taken, so it is as noisy as one was.

    The leaders' last timings, which say what they are worth, are not drawn from: luck in choosing is not paid for.
    """

    def __init__(self, table: Table, seed: int = 0) -> None:
        self.table = table
        self._random = random.Random(seed)
        self._looks = looks(table.target)
        self._pairs = [_pairs(row) for row in table.rows]
        self._seconds = [row.judging_s for row in table.rows]

    def judge(self, row: int) -> Judgement:
        """One judgement. Raises IndexError where there is no such row."""
        if not self._pairs[row]:
            status = self.table.rows[row].status
            return Judgement(row, status, False, 0.0, 0.0, 0.0, self._seconds[row])
        ratios = [baseline / own for baseline, own in self.draw(row)]
        low, speed, high = min(ratios), statistics.median(ratios), max(ratios)
        return Judgement(row, CORRECT, True, low, speed, high, self._seconds[row])

    def draw(self, row: int, worth: float = 0.0) -> list[tuple[float, float]]:
        """Seconds of baseline and candidate, as one judgement of a row that works would see them: as many as a profile
        takes until it has seen enough. worth: see `Judge.profile`."""
        # As many from the generator each time: what is told of one row does not hang on what was told of others.
        drawn = self._random.choices(self._pairs[row], k=MOST_GLANCES)
        ratios = [baseline / own for baseline, own in drawn]
        return drawn[: rounds_of(ratios, self._looks, worth)]


def _pairs(row: Row) -> list[tuple[float, float]]:
    return list(zip(row.baseline, row.seconds, strict=True)) if row.works else []
