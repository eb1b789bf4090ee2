"""What every covered task offers, whichever kernels cover it: its family, its schedules, and the source of each."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from cuda_agent_backend.codegen.bugs import attempt_for
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Plan
from sandbox.task.task import Task


@runtime_checkable
class Analysis(Protocol):
    """A covered task, in whichever form a sketch knows it. ``family`` names what its kernels do, for people."""

    @property
    def task(self) -> Task: ...

    @property
    def family(self) -> str: ...

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        """Schedules worth trying for ``device`` (None: this machine), best guess first."""

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan under ``schedule``.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """


def offered(analysis: Analysis, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
    """The schedules of a covered task; none where its family gives up or fails, which is counted as a bug."""
    found = attempt_for(analysis.task, "choosing schedules for", lambda: analysis.schedules(device))
    return [] if isinstance(found, NotCovered) else found
