"""No family of operators and no number of them is most of a set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.synthesis.filters.decide import Dropped

FAMILY, TWO_OPERATORS = 0.10, 0.40
"""Shares of the tasks wanted: of those with a family, and of those with two operators."""
LEAST = 8
"""A small set may have so many tasks of each kind, whatever their share."""


@dataclass
class Quotas:
    """count: tasks wanted. Ask in the order of seed numbers, and `take` what is kept."""

    count: int
    families: Counter[str] = field(default_factory=Counter)
    pairs: int = 0

    def why_dropped(self, families: Sequence[str], ops: Sequence[str]) -> Dropped | None:
        """Why a task is one too many; None if it is not."""
        most = max(LEAST, int(FAMILY * self.count))
        full = [family for family in families if self.families[family] >= most]
        if full:
            return Dropped("family is full", f"{most} tasks have {full[0]}")
        if len(ops) == 2 and self.pairs >= max(LEAST, int(TWO_OPERATORS * self.count)):
            return Dropped("family is full", f"{self.pairs} tasks have two operators")
        return None

    def take(self, families: Sequence[str], ops: Sequence[str]) -> None:
        """Count a task that is kept."""
        self.families.update(set(families))
        self.pairs += len(ops) == 2
