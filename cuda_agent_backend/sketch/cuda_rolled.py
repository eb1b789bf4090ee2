"""Loops over steps -> CUDA: one kernel that goes through all steps, with what they hand on in registers.

Lanes are dealt to threads once. Lanes that a reduction joins are neighbours in a warp, and a thread has some of them;
what is done once for them all of its threads do, and the first one writes. Nothing passes between blocks or through
memory, and what a step reads does not depend on the step before, so that loads of several steps are under way together.
What comes before the loop is kernels of the other sketches.

Schedule parameters: the first entry of a schedule is the loop's, those of the kernels before it follow. `each`: lanes
of a thread, of those that are reduced; `threads` of a block; `ahead`: steps that are written out one after another,
whose loads do not wait for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent_backend.sketch import cuda
from cuda_agent_backend.sketch.cuda_layout import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.sketch.cuda_rolled_kernel import (
    AHEAD,
    MOST_EACH,
    THREADS,
    Deal,
    LoopWriter,
    points,
)
from cuda_agent_backend.sketch.device import CpuFacts, gpu_facts
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.nest import Kernel
from cuda_agent_backend.sketch.program import Program, preludes_of, renamed
from cuda_agent_backend.sketch.rolled import LaneStage, Rolled
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.plan import Buffer, Launch, Plan
from sandbox.specs import TensorSpec
from sandbox.steps import Step
from sandbox.task import Task

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
Nests = tuple[LoweredRegion, tuple[Kernel, ...]]


def _cost(deal: Deal, form: Rolled, device: DeviceFacts) -> int:
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
class CudaRolled:
    """A task that is a loop, as kernels for what is before it and one for all steps (see ``api.Analysis``)."""

    task: Task
    form: Rolled
    before: Nests | None

    @property
    def family(self) -> str:
        return f"loop of {self.form.steps} steps" + (", behind others" if self.before else "")

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        facts = gpu_facts(device)
        best, *others = self._before(facts)
        deals = list(itertools.islice(self._deals(facts), PROPOSALS))
        found = [_schedule(deal, best) for deal in deals]
        # the kernels before may be most of the work: their second choices come before the loop's last
        found[FEW:FEW] = [_schedule(deals[0], other) for other in others if deals]
        return found

    def _before(self, device: DeviceFacts) -> list[Schedule]:
        if self.before is None:
            return [Schedule(())]
        return cuda.schedules(*self.before, device, FEW)[:FEW]

    def _deals(self, device: DeviceFacts) -> Iterator[Deal]:
        """Ways to deal lanes, likely ones first."""
        form = self.form
        shares = [n for n in range(1, MOST_EACH + 1) if _fits(Deal(n, WARP, 1), form)]
        shares.sort(key=lambda each: _cost(Deal(each, WARP, 1), form, device))
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
        numbers = {name: value for name, value in own.items() if isinstance(value, int)}
        if own.get("sketch") != SKETCH or set(numbers) != {"each", "threads", "ahead"}:
            raise Unsupported(f"parameters {own} of a loop")
        deal = Deal(**numbers)
        deal.check(self.form)
        buffers = self._buffers()
        programs, steps = list[Program](), list[Step]()
        if self.before is not None:
            rest = Schedule(schedule.kernels[1:])
            made = cuda.program(*self.before, rest, gpu_facts(device))
            names = self._names(made.plan)
            programs.append(made)
            steps += [renamed(s, names) for s in made.plan.steps if isinstance(s, Launch)]
            between = (b for b in made.plan.buffers if b.kind == "temporary")
            buffers += [Buffer(names[b.name], b.kind, b.spec) for b in between]
        elif len(schedule.kernels) > 1:
            raise Unsupported("kernels before a loop that has none")
        loop = LoopWriter(self.form, deal, f"k{len(self.before[1]) if self.before else 0}")
        functions = (*(text for made in programs for text in made.functions), loop.function())
        preludes = preludes_of([*(made.preludes for made in programs), loop.preludes()])
        plan = Plan("cuda", tuple(buffers), (*steps, loop.launch()))
        return Program(preludes, functions, plan).source, plan

    def _names(self, plan: Plan) -> dict[str, str]:
        """What the buffers of the kernels before are called in the plan of all."""
        names = {b.name: f"before_{b.name}" for b in plan.buffers}
        inputs = (b.name for b in plan.buffers if b.kind == "input")
        outputs = (b.name for b in plan.buffers if b.kind == "output")
        names |= zip(inputs, self.form.before_inputs, strict=True)
        names |= zip(outputs, self.form.before_outputs, strict=True)
        return names

    def _buffers(self) -> list[Buffer]:
        task = self.task
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
        outputs = [Buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
        kept = [
            Buffer(name, "temporary", TensorSpec(spec.dtype, (spec.extent,), (1,)))
            for name, spec in self.form.kept.items()
        ]
        return [*inputs, *outputs, *kept]


def _fits(deal: Deal, form: Rolled) -> bool:
    try:
        deal.check(form)
    except Unsupported:
        return False
    return True


def _schedule(deal: Deal, before: Schedule) -> Schedule:
    return Schedule.of({"sketch": SKETCH, **deal.__dict__}, *(dict(k) for k in before.kernels))
