"""Neighbours' kernels as a policy is told of them: small, and with schedules that fit the task at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from cuda_agent_backend.agent.memory.recall import Neighbour
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import kind_of
from sandbox.task.task import Task

MOST_SOURCE = 6000
MOST_SCHEDULE = 4000
MOST_TASK = 300
"""Characters of each that a neighbour may take."""
MOST_TRIES = 24
"""Schedules that are tried out on a sketch to fit one neighbour's."""

Fits = Callable[[Schedule], bool]


def offers(
    neighbours: Sequence[Neighbour], proposals: Sequence[Schedule], fits: Fits
) -> list[dict[str, Any]]:
    """What `look` answers of neighbours: distance, task, speed-up, and a schedule that fits, or source.

    fits: whether a schedule fits the task (`api.generate`). A kernel that a sketch made and whose schedule cannot be
    fitted has nothing to offer and is left out.
    """
    found = []
    for neighbour in neighbours:
        offer = _offer(neighbour, proposals, fits)
        if offer:
            about = {"distance": round(neighbour.distance, 4), "task": summary(neighbour.task)}
            found.append({**about, "speedup": neighbour.speedup, **offer})
    return found


def _offer(
    neighbour: Neighbour, proposals: Sequence[Schedule], fits: Fits
) -> dict[str, Any] | None:
    record = neighbour.record
    if record.origin != "sketch":
        return {"language": record.language, "source": cut(record.source, MOST_SOURCE)}
    if len(record.label) > MOST_SCHEDULE:
        return None
    try:
        schedule = Schedule.from_json(record.label)
    except (ValueError, RecursionError):
        return None
    fitted = adapt(schedule, proposals, fits)
    return (
        None
        if fitted is None
        else {"schedule": json.loads(fitted.to_json()), "adapted": fitted != schedule}
    )


def adapt(schedule: Schedule, proposals: Sequence[Schedule], fits: Fits) -> Schedule | None:
    """The schedule itself where it fits; else the first proposal of its kind with as many of its values as fit.

    None where no proposal is of its kind, or none of its values fits.
    """
    if fits(schedule):
        return schedule
    base = next((p for p in proposals if kind_of(p) == kind_of(schedule)), None)
    if base is None:
        return None
    best = base
    differing = [
        (number, name, value)
        for number, kernel in enumerate(schedule.kernels)
        for name, value in kernel
        if base.parameters(number)[name] != value
    ]
    for number, name, value in differing[:MOST_TRIES]:
        kernels = [dict(kernel) for kernel in best.kernels]
        kernels[number][name] = value
        changed = Schedule.of(*kernels)
        if fits(changed):
            best = changed
    return best if best != base else None


def summary(task: Task) -> str:
    """A task on one line: its inputs, its operators."""
    inputs = ", ".join(f"{s.dtype}{list(s.shape)}" for s in task.inputs)
    return cut(f"{inputs}: {' '.join(node.name for node in task.nodes)}", MOST_TASK)


def cut(text: str, most: int) -> str:
    """Long text with its middle left out and its size told; at most ``most`` characters."""
    if len(text) <= most:
        return text
    note = f"\n[... {len(text)} characters, the middle left out ...]\n"
    half = (most - len(note)) // 2
    return f"{text[:half]}{note}{text[-half:]}"
