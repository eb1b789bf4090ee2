"""A task and its rewritten forms as one analysis, whose schedules say which form they are for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from cuda_agent_backend.codegen.covered_task import Analysis, offered
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

PARAMETER = "rewrite"
"""The parameter of a schedule's first kernel that names the rules; without it a schedule is for the task as it is."""


@dataclass(frozen=True)
class Alternatives:
    """Ways to cover a task, the cheapest first. ``forms`` are pairs of a form's name ("" for the task as it stands) and
    its analysis; all have the task's inputs and outputs.
    """

    task: Task
    forms: tuple[tuple[str, Analysis], ...]

    @property
    def family(self) -> str:
        return "; or ".join(
            f"{name}: {analysis.family}" if name else analysis.family
            for name, analysis in self.forms
        )

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        """The best guess for each form, then what else there is for each."""
        tagged = [
            [made for s in offered(analysis, device) if (made := named(s, name)) is not None]
            for name, analysis in self.forms
        ]
        firsts = [found[:1] for found in tagged]
        return list(itertools.chain(*firsts, *(found[1:] for found in tagged)))

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        name, plain = split(schedule)
        for known, analysis in self.forms:
            if known == name:
                return analysis.emit(plain, device)
        there = ", ".join(known or "the task as it stands" for known, _ in self.forms)
        raise Unsupported(f"no rewritten form {name!r}; there are: {there}")


def named(schedule: Schedule, name: str) -> Schedule | None:
    """The schedule with the name of the form that it is for; None where no kernel can carry it."""
    if not name:
        return schedule
    if not schedule.kernels:
        return None
    first, *rest = (dict(kernel) for kernel in schedule.kernels)
    return Schedule.of({**first, PARAMETER: name}, *rest)


def split(schedule: Schedule) -> tuple[str, Schedule]:
    """The name of the form that a schedule is for, and the schedule without it."""
    kernels = [dict(kernel) for kernel in schedule.kernels]
    name: Parameter = kernels[0].pop(PARAMETER, "") if kernels else ""
    return str(name), Schedule.of(*kernels)
