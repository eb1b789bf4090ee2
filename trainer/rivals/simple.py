"""Rivals that learn nothing: by chance, and in the order of proposals."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trainer.rivals.protocol import Play, View, in_turn, then_rest
from trainer.world.rows import Table


class Uniform:
    """Any row, each as likely as the others."""

    name = "random"

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Nothing."""

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        rows = list(range(len(view.names)))
        random.Random(f"{seed} {view.names}").shuffle(
            rows
        )  # places in one table say nothing of another
        return in_turn(rows)


class InOrder:
    """The proposals, best guess first, then what lies beside them."""

    name = "order"

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Nothing."""

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        return then_rest((), view)
