"""Loops over steps -> CUDA: one kernel that goes through all steps, with what they hand on in registers.

Lanes are dealt to threads once. Lanes that a reduction joins are neighbours in a warp, and a thread has some of them;
what is done once for them all of its threads do, and the first one writes. Nothing passes between blocks or through
memory, and what a step reads does not depend on the step before, so that loads of several steps are under way together.
What comes before the loop, and what is behind it and not done in its steps, is kernels of the other sketches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.reroll.form import LaneStage, Part, StepLoop
from cuda_agent_backend.codegen.cuda.reroll.kernel import (
    AHEAD,
    MOST_EACH,
    THREADS,
    Deal,
    LoopWriter,
    points,
)
from cuda_agent_backend.codegen.family import Generator
from cuda_agent_backend.codegen.ir.device import WARP, CpuFacts, DeviceFacts, ceildiv, gpu_facts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Nests
from cuda_agent_backend.codegen.ir.parameters import integer, read
from cuda_agent_backend.codegen.ir.program import Program, preludes_of, renamed
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.plan.steps import Step
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task

SKETCH = "loop"
SHARES, PROPOSALS, FEW = 3, 12, 3
"""Numbers of lanes of a thread that are tried, schedules of a loop, and of the kernels before it."""
COSTLY = (
    "exp",
    "log",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "sin",
    "cos",
    "pow",
    "truediv",
    "div",
    "sqrt",
    "rsqrt",
)
SLOW, SHUFFLE = 8, 2
"""Instructions of those, and of an exchange between lanes with what follows it; others count one."""


def _cost(deal: Deal, form: StepLoop, device: DeviceFacts) -> int:
    """Instructions of a step that a scheduler issues, to compare ways by."""
    warps = ceildiv(points(form.lanes) * deal.team(form), WARP)
    wide = sum(_instructions(s) for s in form.stages if s.wide)
    once = sum(_instructions(s) for s in form.stages if not s.wide)
    joins = sum(s.kind == "reduce" for s in form.stages)
    own = deal.each * wide + once + SHUFFLE * joins * (deal.team(form).bit_length() - 1)
    return ceildiv(warps, 4 * device.sm_count) * own


def _instructions(stage: LaneStage) -> int:
    return sum(SLOW if i.op in COSTLY else 1 for i in stage.body.walk())


@dataclass(frozen=True)
class LoopParams(Deal):
    """The parameters of a schedule's first entry."""

    before: int = integer("entries of the kernels before the loop", least=0, default=0)


@dataclass(frozen=True)
class Around:
    """A part of the task beside the loop, and the kernels that compute it."""

    part: Part
    nests: Nests
    generator: Generator

    def schedules(self, device: DeviceFacts) -> list[Schedule]:
        return self.generator.schedules(self.nests, device, FEW)[:FEW]


@dataclass(frozen=True)
class CudaStepLoop:
    """A task that is a loop, as one kernel for all steps, and kernels before and behind (see ``api.Analysis``)."""

    task: Task
    form: StepLoop
    before: Around | None
    after: Around | None

    @staticmethod
    def of(task: Task, form: StepLoop, generator: Generator) -> CudaStepLoop:
        """Raises Unsupported where kernels do not cover what is beside the loop, or no deal of its lanes fits."""
        if not _shares(form):
            raise Unsupported("a loop whose lanes are reduced among more threads than a warp has")
        before, after = (
            None if part is None else Around(part, generator.nests(part.task), generator)
            for part in (form.before, form.after)
        )
        return CudaStepLoop(task, form, before, after)

    @property
    def family(self) -> str:
        return f"loop of {self.form.steps} steps"

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        """The loop's vary with the best for the kernels beside it, which may be most of the work: their next choices
        come before the loop's last."""
        facts = gpu_facts(device)
        before, after = (
            [Schedule(())] if part is None else part.schedules(facts)
            for part in (self.before, self.after)
        )
        deals = list(itertools.islice(self._deals(facts), PROPOSALS))
        found = [_schedule(deal, before[0], after[0]) for deal in deals]
        others = [(own, after[0]) for own in before[1:]] + [(before[0], own) for own in after[1:]]
        found[FEW:FEW] = [_schedule(deals[0], *other) for other in others if deals]
        return found

    def _deals(self, device: DeviceFacts) -> Iterator[Deal]:
        """Ways to deal lanes, likely ones first."""
        form = self.form
        shares = sorted(_shares(form), key=lambda each: _cost(Deal(each, WARP, 1), form, device))
        for ahead, smaller, each in itertools.product(AHEAD, (0, 1), shares[:SHARES]):
            full = (t for t in THREADS if Deal(each, t, 1).blocks(form) >= device.sm_count)
            threads = max(next(full, WARP) >> smaller, WARP)
            deal = Deal(each, threads, ahead)
            if _fits(deal, form) and ahead <= form.steps:
                yield deal

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        own = schedule.parameters(0)
        params = read(LoopParams, own)
        if isinstance(params, NotCovered) or own.get("sketch") != SKETCH:
            raise Unsupported(f"parameters {own} of a loop")
        behind, facts = params.before + 1, gpu_facts(device)
        deal = Deal(params.each, params.threads, params.ahead)
        deal.check(self.form)
        first = len(self.before.nests[1]) if self.before else 0
        made = _Made([], [], self._buffers(), [])
        made.add(self.before, Schedule(schedule.kernels[1:behind]), facts, 0)
        loop = LoopWriter(self.form, deal, f"k{first}")
        made.preludes.append(loop.preludes())
        made.functions.append(loop.function())
        made.steps.append(loop.launch())
        made.add(self.after, Schedule(schedule.kernels[behind:]), facts, first + 1)
        plan = Plan("cuda", tuple(made.buffers), tuple(made.steps))
        return Program(preludes_of(made.preludes), tuple(made.functions), plan).source, plan

    def _buffers(self) -> list[Buffer]:
        task = self.task
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
        outputs = [Buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
        kept = [
            Buffer(name, "temporary", TensorSpec(spec.dtype, (spec.extent,), (1,)))
            for name, spec in self.form.kept.items()
        ]
        return [*inputs, *outputs, *kept]


@dataclass(frozen=True)
class _Made:
    """A plan and its source while they are put together."""

    preludes: list[tuple[str, ...]]
    functions: list[str]
    buffers: list[Buffer]
    steps: list[Step]

    def add(
        self, around: Around | None, schedule: Schedule, device: DeviceFacts, first: int
    ) -> None:
        """Kernels beside the loop, the first one with this number."""
        if around is None:
            if schedule.kernels:
                raise Unsupported("kernels beside a loop that has none there")
            return
        made = around.generator.program(around.nests, schedule, device, first)
        names = _names(around.part, made.plan, f"part{first}")
        self.preludes.append(made.preludes)
        self.functions.extend(made.functions)
        self.steps.extend(renamed(s, names) for s in made.plan.steps if isinstance(s, Launch))
        between = (b for b in made.plan.buffers if b.kind == "temporary")
        self.buffers.extend(Buffer(names[b.name], b.kind, b.spec) for b in between)


def _names(part: Part, plan: Plan, prefix: str) -> dict[str, str]:
    """What the buffers of a part's plan are called in the plan of all."""
    names = {b.name: f"{prefix}_{b.name}" for b in plan.buffers}
    inputs = (b.name for b in plan.buffers if b.kind == "input")
    outputs = (b.name for b in plan.buffers if b.kind == "output")
    names |= zip(inputs, part.inputs, strict=True)
    names |= zip(outputs, part.outputs, strict=True)
    return names


def _shares(form: StepLoop) -> list[int]:
    """Numbers of lanes that a thread may have."""
    return [n for n in range(1, MOST_EACH + 1) if _fits(Deal(n, WARP, 1), form)]


def _fits(deal: Deal, form: StepLoop) -> bool:
    try:
        deal.check(form)
    except Unsupported:
        return False
    return True


def _schedule(deal: Deal, before: Schedule, after: Schedule) -> Schedule:
    own = {"sketch": SKETCH, **deal.__dict__, "before": len(before.kernels)}
    return Schedule.of(own, *map(dict, (*before.kernels, *after.kernels)))
