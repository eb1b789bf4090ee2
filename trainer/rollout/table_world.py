"""The measured world: tasks whose schedules were timed once answer from their tables, in microseconds."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.rollout.held_out import HeldOut, to_validate
from trainer.world.neighbours import TableMemory
from trainer.world.replay_tools import ReplayTools
from trainer.world.rows import Table

LEAST = 2
"""Schedules that must work, or there is nothing to choose."""


class TableWorld:
    """Tables by id; those of held-out families are for evaluation only. Raises ValueError where one side is empty.

    training: whether it is trained in, and so needs tables that are not held out. validated: the share of the other
    families that is not trained on either (see `held_out.to_validate`).
    """

    def __init__(
        self,
        tables: Sequence[Table],
        held_out: HeldOut,
        side_by_side: int,
        training: bool = True,
        validated: float = 0.0,
    ) -> None:
        playable = [t for t in tables if sum(row.works for row in t.rows) >= LEAST]
        away = held_out.families([t.family for t in playable])
        self._tables = {table.id: table for table in playable}
        left = [t for t in playable if t.family not in away]
        kept = to_validate([t.family for t in left], validated)
        self.tasks: Sequence[str] = tuple(t.id for t in left if t.family not in kept)
        self.validation_tasks: Sequence[str] = tuple(t.id for t in left if t.family in kept)
        self.test_tasks: Sequence[str] = tuple(t.id for t in playable if t.family in away)
        self.side_by_side = side_by_side
        self._memory = TableMemory(self.tables(self.tasks))
        if (training and not self.tasks) or (held_out.share and not self.test_tasks):
            raise ValueError(
                f"{len(tables)} tables, of which {len(playable)} can be played, are too few or too much alike to hold "
                f"{held_out.share:.0%} of their families out{_and_validate(validated)}"
            )

    def tables(self, ids: Sequence[str]) -> list[Table]:
        """The tables of some tasks."""
        return [self._tables[id] for id in ids]

    def family(self, task: str) -> str:
        """That of its table."""
        return self._tables[task].family

    def tools(self, task: str, seed: int) -> ReplayTools:
        """See `World`. Of like tasks `look` tells what won on tables to train on, as in a search with a cache."""
        table = self._tables[task]
        return ReplayTools.of(table, seed, self._memory.neighbours(table))

    def close(self) -> None:
        """Nothing is held."""


def _and_validate(share: float) -> str:
    return f", and to validate on {share:.0%} of the others" if share else ""
