"""Products and convolutions by cuBLAS and cuDNN -> a plan that calls them, with kernels for what is before and behind.

A library is the fastest there is for some products in half precision and for many convolutions. What is around a call
is kernels of the other sketches, each part for itself. A region with nothing around it is the library's anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cuda_agent_backend.codegen.cuda.library.extern_calls import calls_of, name_of
from cuda_agent_backend.codegen.cuda.library.extern_split import ExternSplit, Part, extern_split_of
from cuda_agent_backend.codegen.family import Generator
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Nests
from cuda_agent_backend.codegen.ir.parameters import read, string, switch
from cuda_agent_backend.codegen.ir.program import Program, preludes_of, renamed
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.plan.plan import Buffer, Convolution, Launch, LibraryCall, Plan
from sandbox.plan.steps import Step
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Ref, Task, TaskError

SKETCH = "library"
FEW = 2
"""Schedules of a part's kernels to ask for: the best guess is taken, and where calls leave no choice the next too."""


@dataclass(frozen=True)
class Around:
    """A part of a task, and the kernels that compute it."""

    part: Part
    nests: Nests


@dataclass(frozen=True)
class LibraryParams:
    """The parameters of a schedule's first entry."""

    kernels: str = string("how many entries each part has", default="")
    last: int = switch(
        "1 where convolutions write images whose channels are next to each other, and kernels beside them do too; "
        "cuDNN copies what else it reads",
        default=0,
    )
    benchmark: int = switch("1 where cuDNN measures its algorithms and does not guess", default=0)


@dataclass(frozen=True)
class Form:
    """A task with its calls in one layout: part by part, each followed by the calls of its level.

    parts: None where a part has nothing to do. layouts: of the values that lie in memory.
    """

    called: ExternSplit
    layouts: Mapping[Ref, TensorSpec]
    parts: tuple[Around | None, ...]
    calls: tuple[tuple[LibraryCall, ...], ...]
    generator: Generator

    def kernels(self, device: DeviceFacts) -> list[tuple[Schedule, ...]]:
        """Schedules by part, the best guess for each first; then, where there is one, the last part's next."""
        choices = [
            self.generator.schedules(p.nests, device, FEW) if p else [Schedule(())]
            for p in self.parts
        ]
        best = [own[0] for own in choices]
        place = max(n for n, p in enumerate(self.parts) if p)
        following = choices[place][1:FEW]
        return [tuple(best), *((*best[:place], one, *best[place + 1 :]) for one in following)]

    def emit(self, schedule: Schedule, device: DeviceFacts) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        measured = bool(schedule.parameters(0).get("benchmark"))
        programs, buffers, steps = list[Program](), self._buffers(), list[Step]()
        first = 0
        for number, own in enumerate(_shares(schedule, len(self.parts))):
            around = self.parts[number]
            if around is not None:
                made = self.generator.program(around.nests, own, device, first)
                names = self._names(number, around.part, made.plan)
                first += len(around.nests[1])
                programs.append(made)
                steps += [renamed(s, names) for s in made.plan.steps if isinstance(s, Launch)]
                own_buffers = [b for b in made.plan.buffers if b.kind == "temporary"]
                buffers += [replace(b, name=names[b.name]) for b in own_buffers]
            elif own.kernels:
                raise Unsupported(f"kernels for part {number}, which has nothing to do")
            steps += [_measured(call, measured) for call in self.calls[number]]
        functions = tuple(text for made in programs for text in made.functions)
        plan = Plan("cuda", tuple(buffers), tuple(steps))
        return Program(
            preludes_of([made.preludes for made in programs]), functions, plan
        ).source, plan

    def _names(self, number: int, part: Part, plan: Plan) -> dict[str, str]:
        """What the buffers of a part's plan are called in the plan of all."""
        called = self.called
        names = {b.name: f"part{number}_{b.name}" for b in plan.buffers}
        inputs = (b.name for b in plan.buffers if b.kind == "input")
        outputs = (b.name for b in plan.buffers if b.kind == "output")
        names |= {own: name_of(called, ref) for own, ref in zip(inputs, part.inputs, strict=True)}
        for own, ref in zip(outputs, part.outputs, strict=True):
            place = called.task.outputs.index(ref) if number == called.last else None
            names[own] = name_of(called, ref) if place is None else f"out{place}"
        return names

    def _buffers(self) -> list[Buffer]:
        called, task = self.called, self.called.task
        inputs = [Buffer(f"in{i}", "input", spec) for i, spec in enumerate(task.inputs)]
        outputs = [Buffer(f"out{i}", "output", spec) for i, spec in enumerate(task.output_specs)]
        between = []
        for ref in called.kept:
            if ref not in called.results:
                spec = TensorSpec(self.layouts[ref].dtype, (self.layouts[ref].extent,), (1,))
                between.append(Buffer(name_of(called, ref), "temporary", spec))
        return [*inputs, *outputs, *between]


@dataclass(frozen=True)
class Library:
    """A task by library calls. forms: by whether convolutions have their channels last, the likelier one first."""

    forms: Mapping[int, Form]

    def schedules(self, device: DeviceFacts) -> list[Schedule]:
        """A few, best guess first: each layout measured, then as cuDNN guesses; of products alone the kernels vary."""
        found = []
        choices = [
            (last, made) for last, form in self.forms.items() if (made := _kernels(form, device))
        ]
        if any(form.called.has_convolutions for form in self.forms.values()):
            for measured in (1, 0):
                found += [_schedule(last, measured, made[0]) for last, made in choices]
            return found
        return [_schedule(last, 0, one) for last, made in choices for one in made]

    def emit(self, schedule: Schedule, device: DeviceFacts) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        own = schedule.parameters(0)
        params = read(LibraryParams, own)
        form = None if isinstance(params, NotCovered) else self.forms.get(params.last)
        if form is None:
            raise Unsupported(f"parameters of library calls: {own}")
        return form.emit(schedule, device)


def library_of(task: Task, generator: Generator) -> Library | None:
    """``task`` by library calls; None where it has none, or nothing around them."""
    try:
        called = extern_split_of(task)
    except (Unsupported, TaskError):
        return None
    first = called.is_channels_last
    orders = (first, not first) if called.has_free_order else (first,)
    forms = {int(last): form for last in orders if (form := _form(called, last, generator))}
    return Library(forms) if forms else None


def _form(called: ExternSplit, last: bool, generator: Generator) -> Form | None:
    """None where kernels do not cover a part, or there are none."""
    layouts = called.laid_out(last)
    try:
        parts = []
        for number in range(called.last + 1):
            part = called.part(number, layouts)
            parts.append(Around(part, generator.nests(part.task)) if part else None)
        levels = (calls_of(called, level, layouts) for level in range(called.last + 1))
        form = Form(called, layouts, tuple(parts), tuple(levels), generator)
    except (Unsupported, TaskError):
        return None
    return form if any(parts) else None


def _kernels(form: Form, device: DeviceFacts) -> list[tuple[Schedule, ...]]:
    """None where a part has no schedule for the device: kernels for the whole may still have some."""
    try:
        return form.kernels(device)
    except Unsupported:
        return []


def _schedule(last: int, measured: int, parts: tuple[Schedule, ...]) -> Schedule:
    shares = ",".join(str(len(own.kernels)) for own in parts)
    own: dict[str, Parameter] = {
        "sketch": SKETCH,
        "kernels": shares,
        "last": last,
        "benchmark": measured,
    }
    return Schedule.of(own, *(dict(kernel) for one in parts for kernel in one.kernels))


def _shares(schedule: Schedule, parts: int) -> list[Schedule]:
    """The parts' own schedules."""
    said = str(schedule.parameters(0).get("kernels", "")).split(",")
    counts = [int(n) for n in said if n.isdecimal()]
    if len(counts) != len(said) or len(counts) != parts or sum(counts) + 1 != len(schedule.kernels):
        raise Unsupported(
            f"kernels={','.join(said)!r} for {parts} parts and {len(schedule.kernels) - 1} kernels"
        )
    found, at = [], 1
    for count in counts:
        found.append(Schedule(schedule.kernels[at : at + count]))
        at += count
    return found


def _measured(call: LibraryCall, measured: bool) -> LibraryCall:
    return replace(call, benchmark=measured) if isinstance(call, Convolution) else call
