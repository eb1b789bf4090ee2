"""A rewritten task whose result may not hold, with the task as it stands for where it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cuda_agent_backend.codegen.guarded_program import guarded
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.loop_nests import LoopNests
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

SECONDS = 12
"""How many schedules are looked at for the task as it stands, which is seldom needed."""


@dataclass(frozen=True)
class Guarded:
    """A rewritten form whose last ``guards`` outputs say whether its results hold, and the task as it stands for where
    they do not."""

    task: Task
    form: LoopNests
    plain: LoopNests
    guards: int
    seconds: dict[DeviceFacts | CpuFacts | None, Program] = field(
        default_factory=dict, compare=False, repr=False
    )
    """The programs for ``plain`` that were chosen, by device: all schedules of ``form`` have the same."""

    @property
    def family(self) -> str:
        return f"{self.form.family} (where not finite {self.plain.family})"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        return self.form.own(device) if self.plain.own(device) else []

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        first = self.form.program(schedule, device)
        return guarded(first, self._second(device), self.guards)

    def _second(self, device: DeviceFacts | CpuFacts | None) -> Program:
        """Of a few good ones that of the fewest blocks: what is not needed takes as long as it takes to begin them."""
        if device not in self.seconds:
            chosen = self.plain.own(device)[:SECONDS]
            made = (self.plain.program(s, device, self.form) for s in chosen)
            self.seconds[device] = min(made, key=_blocks)
        return self.seconds[device]


def _blocks(made: Program) -> int:
    return sum(math.prod(launch.grid) for launch in made.plan.launches())
