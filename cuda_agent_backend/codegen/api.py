"""What the rest of the backend asks of sketches: analyse a task, propose schedules, generate a candidate."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Protocol, runtime_checkable

import torch

from cuda_agent_backend.codegen.alternatives import Alternatives
from cuda_agent_backend.codegen.analysis.attention import (
    Attention,
    attention_of,
    composed_of,
    is_attention,
)
from cuda_agent_backend.codegen.cpu import schedules as cpu_schedules
from cuda_agent_backend.codegen.cpu import writer as cpu
from cuda_agent_backend.codegen.cpu.attention import CpuAttention
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.attention.float32 import CudaAttention
from cuda_agent_backend.codegen.cuda.attention.half import CudaHalfAttention
from cuda_agent_backend.codegen.cuda.attention.linear.match import mixing_of
from cuda_agent_backend.codegen.cuda.attention.linear.writer import CudaMixing
from cuda_agent_backend.codegen.cuda.common.dependent_launch import chained
from cuda_agent_backend.codegen.cuda.library.writer import Library, is_library, library_of
from cuda_agent_backend.codegen.cuda.recurrent.match import is_recurrent, recurrent_of
from cuda_agent_backend.codegen.cuda.recurrent.writer import CudaRecurrent
from cuda_agent_backend.codegen.cuda.reroll.match import rolled_of
from cuda_agent_backend.codegen.cuda.reroll.writer import CudaRolled
from cuda_agent_backend.codegen.cuda.scatter.match import has_scatter, scatter_of
from cuda_agent_backend.codegen.cuda.scatter.writer import CudaScatter
from cuda_agent_backend.codegen.cuda.sort.match import is_sorting, sorting_of
from cuda_agent_backend.codegen.cuda.sort.select import CudaSelection
from cuda_agent_backend.codegen.cuda.sort.writer import CudaSort
from cuda_agent_backend.codegen.guarded import FIRST, SECOND, guarded
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, cpu_facts, gpu_facts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.nest import Kernel, Nests, temporaries
from cuda_agent_backend.codegen.ir.program import Program
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.ssa import Unsupported
from cuda_agent_backend.codegen.lowering.lower import lower
from cuda_agent_backend.codegen.transform.hoist_scale import unscaled
from cuda_agent_backend.codegen.transform.scan_order import grouped
from cuda_agent_backend.rewrite.forms import Form, forms
from sandbox.plan.candidate import Candidate, Language
from sandbox.plan.check import MAX_BUFFERS
from sandbox.plan.plan import Plan, PlanError
from sandbox.task.task import Task, TaskError


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


OWN, CALLED = 6, 2
"""Schedules of kernels alone before those with library calls, and of these how many come before the others: the second
round of a search, of four, has both."""


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
        with _lowering:
            return library_of(self.task, _nests)

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
        if is_library(schedule) and self.library is not None:
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


SECONDS = 12
"""Schedules that are looked at for a program that is seldom needed."""


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


APART = "apart"
"""What schedules are marked with whose products do not store across their loops, where others do."""

_lowering = threading.RLock()
"""Inductor's lowering is not safe among threads."""


@lru_cache(maxsize=256)
def _analyse(text: str) -> Analysis | NotCovered:
    task = Task.from_json(text)
    found = as_it_stands(task)
    rewritten = forms(task)
    # a kernel for all of it, which no rewritten form has that needs its products
    if isinstance(found, CudaAttention | CudaMixing) and not any(f.guards for f in rewritten):
        return found
    tried = [(form.name, _rewritten(task, form)) for form in rewritten]
    ways = [(name, way) for name, way in tried if not isinstance(way, NotCovered)]
    own = () if isinstance(found, NotCovered) else (("", found),)
    apart = _apart(found) if isinstance(found, LoopNests) else None
    every = (*ways, *own, *(((APART, apart),) if apart else ()))
    return Alternatives(task, every) if len(every) > len(own) else found


def _apart(nests: LoopNests) -> LoopNests | None:
    """The same without products that store across their loops, which may cost more than to read them once again."""
    if nests.task.target != "cuda":
        return None
    try:
        kernels = _kernels(nests.region, "cuda", across=False)
    except Unsupported:
        return None
    return LoopNests(nests.task, nests.region, kernels, False) if kernels != nests.kernels else None


def _blocks(made: Program) -> int:
    return sum(math.prod(launch.grid) for launch in made.plan.launches())


def _rewritten(task: Task, form: Form) -> Analysis | NotCovered:
    if not form.guards:
        return as_it_stands(form.task)
    try:
        return Guarded(task, _loop_nests(form.task), _loop_nests(task), form.guards)
    except Unsupported as error:
        return NotCovered(str(error))


def _fits(region: LoweredRegion, target: str, kernel: Kernel) -> bool:
    return target != "cuda" or cuda.fits(kernel, region)


def as_it_stands(task: Task) -> Analysis | NotCovered:
    """The form in which a sketch covers ``task``, without rewriting it."""
    try:
        if is_attention(task):
            return _attention(task, attention_of(task))
        if (composed := composed_of(task)) is not None:
            return _attention(task, composed)
        if (mixing := mixing_of(task)) is not None:
            return CudaMixing(task, mixing)
        if has_scatter(task):
            return CudaScatter.of(task, scatter_of(task), _nests)
        if is_sorting(task) and task.target == "cuda":
            form = sorting_of(task)
            return CudaSelection(task, form) if form.selects else CudaSort(task, form)
        if is_recurrent(task) and task.target == "cuda":
            return CudaRecurrent(task, recurrent_of(task))
        if task.target == "cuda" and (loop := _loop(task)) is not None:
            return loop
        return _loop_nests(task)
    except Unsupported as error:
        return NotCovered(str(error))


def _loop(task: Task) -> CudaRolled | None:
    """The task as a loop over steps; None where it is none, or is left to kernels that have it written out.

    That is so for whatever reason its graph could not be rewritten.
    """
    try:
        form = rolled_of(task)
        return None if form is None else CudaRolled.of(task, form, _nests)
    except (Unsupported, TaskError, RuntimeError, ValueError):
        return None


def _loop_nests(task: Task) -> LoopNests:
    return LoopNests(task, *_nests(task))


def _nests(task: Task) -> Nests:
    region = lower(task)
    return region, _kernels(region, task.target, across=task.target == "cuda")


def _kernels(region: LoweredRegion, target: str, across: bool) -> tuple[Kernel, ...]:
    """As `grouped`; what is too many buffers is said here, before any schedule is written out."""
    kernels = grouped(region, partial(_fits, region, target), across)
    if target == "cuda":
        kernels = tuple(map(unscaled, kernels))
    if len([*region.inputs, *region.outputs, *temporaries(region, kernels)]) > MAX_BUFFERS:
        raise Unsupported(f"more than {MAX_BUFFERS} buffers")
    return kernels


def _attention(task: Task, form: Attention) -> Analysis:
    if task.target == "cpu":
        return CpuAttention(task, form)
    kind = CudaAttention if form.dtype == torch.float32 else CudaHalfAttention
    return kind(task, form)


def analyse(task: Task) -> Analysis | NotCovered:
    """The forms in which sketches cover ``task``, rewritten ones included; the reason where none does."""
    if any(math.prod(s.shape) == 0 for s in (*task.inputs, *task.output_specs)):
        return NotCovered("a tensor without elements")
    with _lowering:
        return _analyse(task.to_json())


def schedules(analysis: Analysis, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
    """Schedules worth trying for this machine (or ``device``), best guess first."""
    return analysis.schedules(device)


def generate(
    analysis: Analysis, schedule: Schedule, device: DeviceFacts | None = None
) -> Candidate | NotCovered:
    """The candidate that ``schedule`` stands for."""
    try:
        source, plan = analysis.emit(schedule, device)
        if plan.target == "cuda":
            source, plan = chained(source, plan, gpu_facts(device))
    except (Unsupported, PlanError) as error:
        return NotCovered(str(error))
    except (ArithmeticError, LookupError, TypeError) as error:
        # A policy may name any numbers: not all are looked at one by one before they are reckoned with.
        return NotCovered(f"the schedule's parameters do not fit: {type(error).__name__}: {error}")
    language: Language = "cuda" if analysis.task.target == "cuda" else "c++"
    return Candidate(plan.target, language, source, plan, "sketch", schedule.to_json())
