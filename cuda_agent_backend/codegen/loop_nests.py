"""A task as kernels made of loop nests, which is how most tasks are covered."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import cached_property, partial

from cuda_agent_backend.codegen.cpu import schedules as cpu_schedules
from cuda_agent_backend.codegen.cpu import writer as cpu
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.library.writer import Library
from cuda_agent_backend.codegen.family import Generator
from cuda_agent_backend.codegen.guarded_program import FIRST, SECOND
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, cpu_facts, gpu_facts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel, Nests, temporaries
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.lowering.lower import lower
from cuda_agent_backend.codegen.registry import LIBRARY
from cuda_agent_backend.codegen.transform.hoist_scale import with_scale_hoisted
from cuda_agent_backend.codegen.transform.scan_order import kernels_of
from sandbox.plan.check import MAX_BUFFERS
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

OWN, CALLED = 6, 2
"""How schedules without library calls (`OWN`) and with them (`CALLED`) take turns at the head of the list. The second
round of a search, of four schedules, then has some of both."""

LOWERING = threading.RLock()
"""Held while Inductor lowers a task, which is not safe among threads."""


@dataclass(frozen=True)
class LoopNests:
    """A task as kernels made of loop nests."""

    task: Task
    region: LoweredRegion
    kernels: tuple[Kernel, ...]
    calls: bool = True
    """Whether schedules with library calls are offered too."""

    @property
    def family(self) -> str:
        kinds = []
        for kernel in self.kernels:
            own = [f"{s.combine} {s.kind}" if s.kind != "map" else "map" for s in kernel.stages]
            kinds.append(
                "map" if kernel.is_map else "+".join(k for k in dict.fromkeys(own) if k != "map")
            )
        return ", ".join(kinds)

    @property
    def bytes_moved(self) -> int:
        """Bytes of inputs and outputs, each once."""
        specs = (*self.task.inputs, *self.task.output_specs)
        return sum(s.extent * s.itemsize for s in specs)

    @cached_property
    def library(self) -> Library | None:
        """The task by library calls with kernels around them."""
        if self.task.target != "cuda" or not self.calls:
            return None
        with LOWERING:
            return LIBRARY.analyse(self.task, GENERATOR)

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        """Those with library calls come behind some of those without: a search ends where a round brings nothing."""
        own = self.own(device)
        called = self.library.schedules(self._gpu(device)) if self.library else []
        return [*own[:OWN], *called[:CALLED], *own[OWN:], *called[CALLED:]]

    def own(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        """Schedules of kernels alone."""
        if self.task.target == "cuda":
            return cuda.schedules(self.region, self.kernels, self._gpu(device))
        host = device if isinstance(device, CpuFacts) else cpu_facts()
        return cpu_schedules.schedules(self.kernels, host.width, self.bytes_moved, host.cache_bytes)

    def _gpu(self, device: DeviceFacts | CpuFacts | None) -> DeviceFacts:
        """Facts of the device, of the operators in TF32 those that are here: eager's are exact elsewhere."""
        facts = gpu_facts(device)
        own = "conv" if any("convolution" in node.name for node in self.task.nodes) else "matmul"
        return replace(facts, tf32=tuple(name for name in facts.tf32 if name == own))

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        if LIBRARY.owns(schedule) and self.library is not None:
            return self.library.emit(schedule, gpu_facts(device))
        if self.task.target == "cuda":
            return cuda.emit(self.region, self.kernels, schedule, gpu_facts(device))
        return cpu.emit(self.region, self.kernels, schedule)

    def program(
        self,
        schedule: Schedule,
        device: DeviceFacts | CpuFacts | None = None,
        behind: LoopNests | None = None,
    ) -> Program:
        """As `emit`, a part of a guarded program: the first one, or the second, behind the one that is given."""
        if self.task.target == "cuda":
            number = 0 if behind is None else len(behind.kernels)
            return cuda.program(self.region, self.kernels, schedule, gpu_facts(device), number)
        entry = FIRST if behind is None else SECOND
        return cpu.program(self.region, self.kernels, schedule, entry)

    def without_stored_products(self) -> LoopNests | None:
        """The same task without matrix products that store across their loops; None where that changes nothing.

        Such stores may cost more than reading the product once again.
        """
        if self.task.target != "cuda":
            return None
        try:
            kernels = _kernels(self.region, "cuda", across=False)
        except Unsupported:
            return None
        changed = kernels != self.kernels
        return LoopNests(self.task, self.region, kernels, False) if changed else None


def loop_nests_of(task: Task) -> LoopNests:
    """``task`` as loop nests.

    Raises:
        Unsupported: no loop nests cover it, with the reason.
    """
    return LoopNests(task, *nests_of(task))


def nests_of(task: Task) -> Nests:
    """A task's region and its kernels. Raises Unsupported where no loop nests cover it."""
    region = lower(task)
    return region, _kernels(region, task.target, across=task.target == "cuda")


class _OfLoopNests:
    """Kernels of loop nests for the parts of a task that a family leaves to them (see `family.Generator`)."""

    def nests(self, task: Task) -> Nests:
        return nests_of(task)

    def schedules(self, nests: Nests, device: DeviceFacts, most: int) -> list[Schedule]:
        return cuda.schedules(*nests, device, most)

    def program(self, nests: Nests, schedule: Schedule, device: DeviceFacts, first: int) -> Program:
        return cuda.program(*nests, schedule, device, first)


GENERATOR: Generator = _OfLoopNests()


def _kernels(region: LoweredRegion, target: str, across: bool) -> tuple[Kernel, ...]:
    """As `grouped`; what is too many buffers is said here, before any schedule is written out."""
    kernels = kernels_of(region, partial(_fits, region, target), across)
    if target == "cuda":
        kernels = tuple(map(with_scale_hoisted, kernels))
    if len([*region.inputs, *region.outputs, *temporaries(region, kernels)]) > MAX_BUFFERS:
        raise Unsupported(f"more than {MAX_BUFFERS} buffers")
    return kernels


def _fits(region: LoweredRegion, target: str, kernel: Kernel) -> bool:
    return target != "cuda" or cuda.fits(kernel, region)
