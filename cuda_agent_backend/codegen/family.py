"""What a kernel family is: one object that says all that the rest asks of it.

A family has a name, parameters (a dataclass, see `ir.parameters`) and what SKILL.md says of them. `cuda.family` adds
what families of one kernel, and of a kernel with what follows it, must answer; `TaskFamily` is for those that take a
whole task. Each family is one class in the `family.py` of its own folder, and one line in a registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Generic, Protocol

from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.kernel import Nests
from cuda_agent_backend.codegen.ir.parameters import SKETCH, P, refusal
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.task.task import Task


class Family(ABC, Generic[P]):
    """A kind of kernel. All that is said here is known without a kernel or a device."""

    name: ClassVar[str]
    """What people call it. Where schedules name their family it is the value of their parameter `sketch`; caches and
    trajectories hold it, so it never changes."""
    is_named: ClassVar[bool] = True
    """Whether its schedules have that parameter. Those of a family that takes a whole task may do without."""
    title: ClassVar[str]
    """What SKILL.md calls it."""
    docs: ClassVar[str]
    """What SKILL.md says of it beside its parameters, in Markdown."""
    like: ClassVar[str] = ""
    """The family whose parameters it has, where SKILL.md is to explain them there alone."""
    params: type[P]
    """The schedule's parameters."""

    def refusal(self, given: Mapping[str, Parameter]) -> NotCovered | None:
        """Why the parameters of a schedule's kernel cannot be this family's."""
        return refusal(self.params, given)

    def owns(self, schedule: Schedule) -> bool:
        """Whether a schedule's first entry names this family."""
        return bool(schedule.kernels) and schedule.parameters(0).get(SKETCH) == self.name


class Generator(Protocol):
    """Kernels of loop nests, for a family that takes a whole task and leaves a part of it to them."""

    def nests(self, task: Task) -> Nests:
        """The kernels of a part. Raises Unsupported where no kernels cover it."""

    def schedules(self, nests: Nests, device: DeviceFacts, most: int) -> list[Schedule]:
        """Schedules of them, best guess first. Raises Unsupported where none fits."""

    def program(self, nests: Nests, schedule: Schedule, device: DeviceFacts, first: int) -> Program:
        """Their program; ``first`` is the number in the name of the first kernel.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """


class TaskFamily(Family[P]):
    """A family of whole tasks."""

    precedes_rewrites: ClassVar[bool] = False
    """Whether its kernel is so much better that rewritten forms of the task are not looked at."""

    @abstractmethod
    def analyse(self, task: Task, generator: Generator) -> Analysis | NotCovered | None:
        """The task as a covered one; a `NotCovered` where it is this family's and yet not covered, with the reason;
        None where it is not this family's.

        Raises:
            Unsupported: as `NotCovered`.
        """
