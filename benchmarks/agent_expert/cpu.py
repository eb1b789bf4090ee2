"""Two small tasks for target cpu, in C++ of a policy's origin, so that the whole way is tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.agent_expert.script import Play, Unfit, Version, dense, folded, plan_of, source_of
from sandbox.task.task import Task

ENTRY = [{"kind": "launch", "kernel": "kernel"}]


def mean_of_middle(task: Task) -> Sequence[Version]:
    """Rows of the middle dimension are added up as they lie in memory, so each line of the cache is read once."""
    batch, length, features = dense(task.inputs[0])
    sizes = {"BATCH": batch, "LENGTH": length, "FEATURES": features}
    return _versions(task, "mean_middle", sizes)


def running_sum(task: Task) -> Sequence[Version]:
    """Rows are independent: threads take rows each, and a row is read and written once."""
    rows, columns = folded(dense(task.inputs[0]), 1)
    if rows < 1:
        raise Unfit("no rows")
    return _versions(task, "running_sum", {"ROWS": rows, "COLUMNS": columns})


def _versions(task: Task, file: str, sizes: dict[str, int]) -> Sequence[Version]:
    plan = plan_of(task, ENTRY)
    plain = source_of(f"{file}.cpp", {**sizes, "THREADED": 0})
    threaded = source_of(f"{file}.cpp", {**sizes, "THREADED": 1})
    return [
        Version("One thread, to have something right.", "fast.cpp", plain, plan),
        Version("All threads.", "fast.cpp", threaded, plan),
    ]


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "cpu/mean_middle": (lambda x: x.mean(1), (16, 300, 200)),
    "cpu/running_sum": (lambda x: torch.cumsum(x, 1), (200, 3000)),
}
PLAYS = {
    "cpu/mean_middle": Play("cpu/mean_middle", mean_of_middle),
    "cpu/running_sum": Play("cpu/running_sum", running_sum),
}
