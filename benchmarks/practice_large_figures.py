"""The rows of the large practice set: what failed for memory, what was slower, what phases held, what a task cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent_backend.bench.figures import TaskFigures, geomean, speedup
from cuda_agent_backend.bench.memory import peak_of
from cuda_agent_backend.bench.runner import lacked_memory

TIMES, MORE = 2.5, 2_000_000_000
"""A phase may hold so many times a task's inputs, weights and outputs, and so many bytes more."""
PHASES = ("search", "measure")

Facts = dict[str, Any]


def table(
    results: Sequence[Mapping[str, Any]],
    figures: Sequence[TaskFigures],
    runs: Sequence[Sequence[Mapping[str, Any]]],
) -> Facts:
    """The rows. results: of tasks, in the order of the figures. runs: of each folder (`run_times.of`)."""
    timed = [task for task in figures if task.timed]
    groups = dict.fromkeys(task.group for task in figures)
    seconds = math.fsum(run["seconds"] for folder in runs for run in folder)
    return {
        "tasks": len(figures),
        "correct": sum(task.correct for task in figures),
        "failed_for_memory": [facts["name"] for facts in results if lacked_memory(facts)],
        "slower_than_inductor": [
            task.name for task in timed if not task.fallback and task.over["inductor"].high < 1
        ],
        "geomean_over_inductor": {
            "all": geomean(speedup(task, "inductor") for task in figures),
            **{
                group: geomean(speedup(t, "inductor") for t in figures if t.group == group)
                for group in groups
            },
        },
        "memory": held(results),
        "card_seconds_for_each_task": seconds / len(figures) if figures else None,
    }


def held(results: Sequence[Mapping[str, Any]]) -> Facts:
    """By phase: of how many tasks the peak is known, which were beyond their bound, and the worst peak over it."""
    rows: Facts = {}
    for phase in PHASES:
        over = {
            str(facts["name"]): peak / bound
            for facts in results
            if (peak := _peak(facts, phase)) is not None and (bound := _bound(facts)) is not None
        }
        rows[phase] = {
            "known": len(over),
            "beyond": sorted(name for name, share in over.items() if share > 1),
            "worst": max(over.values(), default=None),
        }
    return rows


def _peak(facts: Mapping[str, Any], phase: str) -> int | None:
    return peak_of((facts.get(phase) or {}).get("memory"))


def _bound(facts: Mapping[str, Any]) -> float | None:
    tensors = facts.get("measure", {}).get("floor", {}).get("tensors")
    return TIMES * tensors + MORE if tensors else None
