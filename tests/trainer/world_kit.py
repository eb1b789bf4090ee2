"""Tables for tests: sixteen small regions of practice tasks, measured once on a processor with two cores, and tables
whose speeds are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from trainer.world.files import read
from trainer.world.rows import Row, Table

FILE = Path(__file__).parent / "data" / "cpu-tables.parquet"
PROPOSED = 2


@cache
def measured() -> tuple[Table, ...]:
    """The tables as they were measured."""
    return tuple(read([FILE]))


def made(
    schedules: Sequence[Schedule],
    speed: Callable[[Schedule], float | None],
    like: Table | None = None,
    **changes: object,
) -> Table:
    """A measured table's task with other schedules and speeds; None: it does not work. Timings have no noise."""
    base = like or measured()[0]
    rows = []
    for rank, schedule in enumerate(schedules):
        value = speed(schedule)
        about = (f"c{rank}", (schedule.to_json(),), rank, rank < PROPOSED)
        if value is None:
            rows.append(Row(*about, "wrong", "wrong", '{"ok": false, "status": "wrong"}'))
        else:
            rows.append(Row(*about, "correct", seconds=(1.0 / value,) * 4, baseline=(1.0,) * 4))
    texts = tuple(schedule.to_json() for schedule in schedules[:PROPOSED])
    count = {"space": len(rows), "legal": len(rows)}
    return replace(base, proposals=texts, rows=tuple(rows), refused=(), **count, **changes)


def row_norm(rows: int, columns: int, target: str = "cpu") -> Task:
    """x / sqrt(sum of squares by row): float32 [rows, columns]."""
    whole = TensorSpec("float32", (rows, columns), (columns, 1))
    return Task(
        target,
        (whole,),
        (
            Node("aten.mul.Tensor", {"self": InputRef(0), "other": InputRef(0)}),
            Node("aten.sum.dim_IntList", {"self": NodeRef(0), "dim": (1,), "keepdim": True}),
            Node("aten.sqrt.default", {"self": NodeRef(1)}),
            Node("aten.div.Tensor", {"self": InputRef(0), "other": NodeRef(2)}),
        ),
        (NodeRef(3),),
        (whole,),
    )
