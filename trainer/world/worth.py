"""What the best of several schedules is worth, without the luck that made it the best.

The largest of several medians is more than its schedule is worth: timings scatter, and the luckiest is chosen. So one
half of the pairs names the best, and the other half says what that one is worth, both ways round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from trainer.world.rows import Row, Table

LEAST = 4
"""Pairs that a row must have for a half of them to say anything."""


def worth_of_best(rows: Sequence[Row]) -> float:
    """The speed-up over the faster baseline of the best of these rows; 0 where none works.

    Where some were timed among the leaders only those are asked: the others were timed less often, and beside other
    kernels. Those with fewer pairs than `LEAST`, as they were hopeless, are asked only where there are no others; then,
    and of one alone, it is the largest median.
    """
    working = [row for row in rows if row.works]
    known = [row for row in working if len(row.pairs) >= LEAST] or working
    leaders = [row for row in known if row.retimed] or known
    if len(leaders) < 2 or len(leaders[0].pairs) < LEAST:
        return max((row.speed or 0.0 for row in leaders), default=0.0)
    halves = [(_median(row.pairs[::2]), _median(row.pairs[1::2])) for row in leaders]
    first = max(halves)[1]
    second = max(halves, key=lambda half: half[1])[0]
    return math.sqrt(first * second)


def best_known(table: Table) -> float:
    """The same of all that a table has."""
    return worth_of_best(table.rows)


def _median(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(baseline / own for baseline, own in pairs)
