"""What a rival sees, what it learns from, and how it asks for judgements."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from cuda_agent_backend.agent.memory.task_distance import TaskFeatures, features_of
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.task.task import Task
from trainer.world.replay import Judgement
from trainer.world.rows import Table

Play = Generator[int, Judgement, None]
"""Yields the row that is to be judged next and is sent what came of it; ends where it would ask for no more."""
NO_ROW = -1
"""In place of a row: a judgement that was spent on what is no candidate, as by a call that makes no sense."""


@dataclass(frozen=True)
class View:
    """What is known of a task before anything of it was judged: what `look` answers, and which schedules fit.

    schedules: by row, the first that prints its candidate; ranks: their places in the space, proposals first. No
    compiler and no clock has seen them.
    """

    task: Task
    sketch: str
    proposals: tuple[Schedule, ...]
    names: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    ranks: tuple[int, ...]
    proposed: tuple[bool, ...]
    eager_s: float
    inductor_s: float
    floor_s: float
    room: float
    operations: int
    rows: dict[Schedule, int]
    """By any schedule that fits, equal candidates' ones too."""

    @cached_property
    def features(self) -> TaskFeatures:
        """The task as distances see it."""
        return features_of(self.task)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Rows as the space has them: the proposals in their order, then the others."""
        return tuple(sorted(range(len(self.ranks)), key=lambda row: self.ranks[row]))


def view_of(table: Table) -> View:
    """A table without what judging said."""
    every = {
        Schedule.from_json(text): number
        for number, row in enumerate(table.rows)
        for text in row.schedules
    }
    return View(
        task=table.parsed,
        sketch=table.sketch,
        proposals=tuple(Schedule.from_json(text) for text in table.proposals),
        names=tuple(row.candidate for row in table.rows),
        schedules=tuple(row.schedule for row in table.rows),
        ranks=tuple(row.rank for row in table.rows),
        proposed=tuple(row.proposed for row in table.rows),
        eager_s=table.eager_s,
        inductor_s=table.inductor_s,
        floor_s=table.floor_s,
        room=table.baselines.room,
        operations=table.operations,
        rows=every,
    )


class Rival(Protocol):
    """A way to choose. `fit` comes first and sees the training tables only; then it plays tasks one by one."""

    @property
    def name(self) -> str: ...

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Learn from tables, or do nothing."""

    def play(self, view: View, seed: int) -> Play:
        """One task. seed: of whatever is drawn."""


def then_rest(first: Sequence[int], view: View) -> Play:
    """Some rows in their order, and then all others in the space's."""
    return in_turn([*first, *view.order])


def in_turn(rows: Iterable[int]) -> Play:
    """Rows in their order, each once, whatever comes of them."""
    # no `yield from`: what is iterated over has no `send` that it could pass on
    for row in dict.fromkeys(rows):  # noqa: UP028
        yield row
