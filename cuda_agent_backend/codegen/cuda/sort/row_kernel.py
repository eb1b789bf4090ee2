"""What sorts and selections share: how a row's kernel is launched, and pieces of its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch

from cuda_agent_backend.codegen.cuda.sort.match import Rows, Sorting
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, ceildiv, gpu_facts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.headers import header
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.printer import STORAGE_TYPES, half_types
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.specs import ITEM_SIZES
from sandbox.task.task import Task

ENTRY = "k0"
MAX_BLOCKS = 2**31 - 1
MOST = 3
"""Schedules that are offered."""


class Block(Protocol):
    """A schedule's parameters: a dataclass of whole numbers."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def threads(self) -> int: ...

    @property
    def across(self) -> int:
        """Rows of a block."""

    def shared_bytes(self, form: Sorting) -> int: ...

    def check(self, form: Sorting, device: DeviceFacts) -> None:
        """Raises Unsupported where the parameters do not fit each other, the row or the device."""

    def source(self, form: Sorting, given: Sequence[str]) -> list[str]:
        """The kernel, with ``given`` as declarations of its parameters."""


@dataclass(frozen=True)
class CudaRows:
    """A sort or a selection as an analysis: what sketches offer the rest of the backend (see `api.Analysis`)."""

    task: Task
    form: Sorting
    family: ClassVar[str]
    block: ClassVar[type[Block]]

    def proposals(self, device: DeviceFacts) -> Sequence[Block]:
        """Parameters to try, best guess first; which of them fit is found out afterwards."""
        raise NotImplementedError

    def schedules(self, device: DeviceFacts | CpuFacts | None = None) -> list[Schedule]:
        best = self.proposals(gpu_facts(device))[:MOST]
        return [Schedule.of(asdict(block)) for block in best]

    def fits(self, block: Block, device: DeviceFacts) -> bool:
        """Whether a kernel can be made under these parameters."""
        try:
            block.check(self.form, device)
        except Unsupported:
            return False
        return True

    def emit(
        self, schedule: Schedule, device: DeviceFacts | CpuFacts | None = None
    ) -> tuple[str, Plan]:
        """Source and plan.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """
        block = require(self.block, schedule.only())
        block.check(self.form, gpu_facts(device))
        count = ceildiv(self.form.rows, block.across)
        if count > MAX_BLOCKS:
            raise Unsupported(f"{count} blocks")
        given, buffers = parameters(self.form, self.task)
        shared, names = block.shared_bytes(self.form), tuple(b.name for b in buffers)
        launch = Launch(ENTRY, (count, 1, 1), (block.threads, 1, 1), shared, names)
        return "\n".join(block.source(self.form, given)), Plan("cuda", buffers, (launch,))


def storage(dtype: str) -> str:
    """In C."""
    return STORAGE_TYPES[getattr(torch, dtype)]


def prelude(form: Sorting, *more: str) -> list[str]:
    """What comes before the kernels of ``form``."""
    return [
        *half_types([getattr(torch, form.source.dtype)]),
        *(header(name) for name in ("cuda/common/prelude.cuh", "cuda/sort/sort.cuh", *more)),
    ]


def element_bytes(form: Sorting, placed: bool) -> int:
    """Of an element as threads compare it: its key, and its position where ``placed``."""
    return max(4, ITEM_SIZES[form.source.dtype]) * (2 if placed else 1)


def place(rows: Rows, number: str) -> str:
    """Where, in C, a row begins; ``number`` is an int64_t."""
    parts, inner = [], 1
    for size, step in reversed(rows.outer):
        at = number if inner == 1 else f"{number} / {inner}"
        parts.append(f"{at} % {size} * {step}")
        inner *= size
    return " + ".join(parts) or "0"


def index_type(form: Sorting) -> str:
    """Of an offset within a row."""
    steps = (form.source.step, *(r.step for r in form.results))
    return "int64_t" if form.length * max(steps) >= WIDE else "int"


def parameters(form: Sorting, task: Task) -> tuple[list[str], tuple[Buffer, ...]]:
    """Declarations of a kernel's parameters, and the plan's buffers in the same order."""
    kinds = [("values", form.values), ("places", form.places)]
    outputs = [(name, rows) for name, rows in kinds if rows is not None]
    given = [f"const {storage(form.source.dtype)}* __restrict__ in"]
    given += [f"{storage(rows.dtype)}* __restrict__ {name}" for name, rows in outputs]
    buffers = [Buffer("in", "input", task.inputs[0])]
    for (name, _), spec in zip(outputs, task.output_specs, strict=True):
        buffers.append(Buffer(name, "output", spec))
    return given, tuple(buffers)


def word(value: bool) -> str:
    """In C."""
    return "true" if value else "false"


def packed(form: Sorting, placed: bool) -> str:
    """The type in C of what packs values into elements."""
    return f"ca::elements<{storage(form.source.dtype)}, {word(placed)}, {word(form.descending)}>"


def result(form: Sorting, name: str, rows: Rows | None) -> str:
    """Arguments in C: where the results of ``row`` begin, and from one to the next."""
    index = index_type(form)
    if rows is None:
        ctype = "int64_t" if name == "places" else storage(form.source.dtype)
        return f"({ctype}*)nullptr, {index}(0)"
    return f"{name} + ({place(rows, 'row')}), {index}({rows.step})"
