"""A static portfolio: the schedules that cover the training tasks best, chosen greedily, tried in that order.

Greedy choice maximises the sum over tasks of the logarithm of the best speed so far, which is submodular, so that it is
within 1 - 1/e of the best portfolio of its size (Nemhauser, Wolsey and Fisher, 1978).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from trainer.rivals.protocol import Play, View, then_rest
from trainer.world.rows import Table

SIZE = 200
NOTHING = 0.2
"""What a task counts of its best where none of the portfolio fits."""


class Portfolio:
    """See the module."""

    name = "portfolio"

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.chosen: list[str] = []
        """Schedules as JSON."""

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Choose."""
        worth: dict[str, dict[int, float]] = defaultdict(dict)
        for number, table in enumerate(tables):
            for row in table.rows:
                share = (row.speed or 0.0) / table.best if table.best else 0.0
                for text in row.schedules if share > NOTHING else ():
                    worth[text][number] = math.log(share)
        reached = [math.log(NOTHING)] * len(tables)
        self.chosen = []
        while worth and len(self.chosen) < self.size:
            gain, text = max((_gain(own, reached), text) for text, own in worth.items())
            if gain <= 0:
                break
            self.chosen.append(text)
            for number, value in worth.pop(text).items():
                reached[number] = max(reached[number], value)

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        places = {schedule.to_json(): row for schedule, row in view.rows.items()}
        return then_rest([places[text] for text in self.chosen if text in places], view)


def _gain(own: dict[int, float], reached: list[float]) -> float:
    return sum(max(0.0, value - reached[number]) for number, value in own.items())
