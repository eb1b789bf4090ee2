"""Judgements answered from a table: what the judge said once, as often as anybody asks, in microseconds."""

from __future__ import annotations

import random
from dataclasses import dataclass

from trainer.world.rows import CORRECT, Row, Table

PAIRS = 4
"""Pairs of timings that one judgement sees: as few as a profile needs where they agree."""


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

    def __init__(self, table: Table, seed: int = 0, pairs: int = PAIRS) -> None:
        self.table, self.pairs = table, pairs
        self._random = random.Random(seed)
        self._ratios = [_ratios(row) for row in table.rows]
        self._seconds = [row.judging_s for row in table.rows]

    def judge(self, row: int) -> Judgement:
        """One judgement. Raises IndexError where there is no such row."""
        ratios = self._ratios[row]
        if not ratios:
            status = self.table.rows[row].status
            return Judgement(row, status, False, 0.0, 0.0, 0.0, self._seconds[row])
        drawn = sorted(self._random.choices(ratios, k=self.pairs))
        half = self.pairs // 2
        middle = drawn[half] if self.pairs % 2 else 0.5 * (drawn[half - 1] + drawn[half])
        return Judgement(row, CORRECT, True, drawn[0], middle, drawn[-1], self._seconds[row])

    def draw(self, row: int) -> list[tuple[float, float]]:
        """Seconds of baseline and candidate, as one judgement of a row that works would see them."""
        found = self.table.rows[row]
        every = list(zip(found.baseline, found.seconds, strict=True))
        return self._random.choices(every, k=self.pairs)


def _ratios(row: Row) -> list[float]:
    if not row.works:
        return []
    return [b / c for b, c in zip(row.baseline, row.seconds, strict=True)]
