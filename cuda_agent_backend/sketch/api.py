"""What the rest of the backend asks of sketches: analyse a task, propose schedules, generate a candidate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from cuda_agent_backend.sketch import cpu, cuda
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts
from cuda_agent_backend.sketch.device import CpuFacts, cpu_facts, gpu_facts
from cuda_agent_backend.sketch.lower import LoweredRegion, lower
from cuda_agent_backend.sketch.nest import Kernel, group
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.candidate import Candidate, Language
from sandbox.plan import PlanError
from sandbox.task import Task


@dataclass(frozen=True)
class NotCovered:
    """No sketch covers the task, or the schedule does not fit it."""

    reason: str


@dataclass(frozen=True)
class Analysis:
    """A covered task as kernels. ``family`` names what its kernels do, for people."""

    task: Task
    region: LoweredRegion
    kernels: tuple[Kernel, ...]

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


@lru_cache(maxsize=256)
def _analyse(text: str) -> Analysis | NotCovered:
    task = Task.from_json(text)
    try:
        region = lower(task)
        return Analysis(task, region, group(region))
    except Unsupported as error:
        return NotCovered(str(error))


def analyse(task: Task) -> Analysis | NotCovered:
    """Lower and group ``task``; the reason where no sketch covers it."""
    if any(math.prod(s.shape) == 0 for s in (*task.inputs, *task.output_specs)):
        return NotCovered("a tensor without elements")
    return _analyse(task.to_json())


def schedules(analysis: Analysis, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
    """Schedules worth trying for this machine (or ``device``), best guess first."""
    if analysis.task.target == "cuda":
        facts = device if isinstance(device, DeviceFacts) else gpu_facts()
        return cuda.schedules(analysis.region, analysis.kernels, facts)
    host = device if isinstance(device, CpuFacts) else cpu_facts()
    return cpu.schedules(analysis.kernels, host.width, analysis.bytes_moved, host.cache_bytes)


def generate(
    analysis: Analysis, schedule: Schedule, device: DeviceFacts | None = None
) -> Candidate | NotCovered:
    """The candidate that ``schedule`` stands for."""
    target = analysis.task.target
    try:
        if target == "cuda":
            source, plan = cuda.emit(
                analysis.region, analysis.kernels, schedule, device or gpu_facts()
            )
        else:
            source, plan = cpu.emit(analysis.region, analysis.kernels, schedule)
    except (Unsupported, PlanError) as error:
        return NotCovered(str(error))
    language: Language = "cuda" if target == "cuda" else "c++"
    return Candidate(plan.target, language, source, plan, "sketch", schedule.to_json())
