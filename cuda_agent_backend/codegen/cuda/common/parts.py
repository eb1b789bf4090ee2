"""Pieces of text and memory shared by the cuda writers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from cuda_agent_backend.codegen.analysis.cancellation import WIDE_SUM
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, STORAGE_TYPES
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.value_types import WIDE, stage_dtype
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch
from sandbox.task.specs import TensorSpec

BYTES = {"float": 4, "double": 8, "int64_t": 8, "int32_t": 4, "int16_t": 2, "int8_t": 1, "uint8_t": 1,
         "bool": 1, "ca::f16": 2, "ca::bf16": 2}  # fmt: skip
FIELD_BYTES = {**BYTES, "int": 4}
PARTIAL_TYPES = {"float": torch.float32, "double": torch.float64, "int64_t": torch.int64, "int": torch.int32,
                 "int32_t": torch.int32}  # fmt: skip


@dataclass(frozen=True)
class Emitted:
    """What one kernel of a region became: functions, their launches, and the memory that passes between them."""

    functions: tuple[str, ...]
    launches: tuple[Launch, ...]
    temporaries: tuple[PlanBuffer, ...] = ()


@dataclass
class SharedMemory:
    """Dynamic shared memory handed out in order."""

    size: int = 0
    lines: list[str] = field(default_factory=list)

    def take(self, name: str, ctype: str, count: int, element_bytes: int) -> None:
        """Declare ``ctype* name`` with room for ``count``."""
        self.size = -(-self.size // 16) * 16
        self.lines.append(
            f"  {ctype}* const {name} = reinterpret_cast<{ctype}*>(shared + {self.size});"
        )
        self.size += count * element_bytes


@dataclass(frozen=True)
class Accumulator:
    """The C++ accumulator of a reduction: its template, the type it compares or adds, and what it takes to keep it."""

    combine: str
    value: str

    def of(self, lanes: int | str) -> str:
        return f"ca::{self.combine}_acc<{self.value}, {lanes}>"

    @property
    def is_arg(self) -> bool:
        return self.combine in ("argmax", "argmin")

    @property
    def is_welford(self) -> bool:
        return self.combine == "welford"

    @property
    def is_real_sum(self) -> bool:
        return self.combine in ("sum", WIDE_SUM) and self.value in ("float", "double")

    @property
    def word(self) -> str:
        """Type of the running value."""
        if self.combine == WIDE_SUM:
            return "double"
        if self.combine == "any" or BYTES[self.value] < 4:
            return "int"
        return self.value

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Arrays over the lanes that make up the accumulator: (member, C type)."""
        if self.is_welford:
            return (("mean", self.word), ("m2", self.word), ("n", self.word))
        return (("v", self.word), ("at", "int")) if self.is_arg else (("v", self.word),)

    def size(self, lanes: int) -> int:
        """sizeof in bytes."""
        widths = [FIELD_BYTES[ctype] for _, ctype in self.fields]
        return -(-lanes * sum(widths) // max(widths)) * max(widths)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def temporary(name: str, dtype: torch.dtype, size: int) -> PlanBuffer:
    return PlanBuffer(name, "temporary", TensorSpec(dtype_name(dtype), (size,), (1,)))


def buffers_of(kernel: Kernel) -> tuple[list[str], list[str]]:
    """Names of memory buffers that ``kernel`` reads, and that it writes, each sorted."""
    reads = {i.buffer for s in kernel.stages for i in s.body.accesses() if i.buffer is not None}
    writes = {s.buffer for st in kernel.stages for s in st.stores}
    if reads & writes:
        raise Unsupported("a buffer that is read and written by one kernel")
    return sorted(reads), sorted(writes)


def parameters_of(region: LoweredRegion, reads: list[str], writes: list[str]) -> list[str]:
    """Parameter declarations of a kernel function; pointers are ``m_<buffer>``."""

    def one(name: str, const: str) -> str:
        return f"{const}{STORAGE_TYPES[region.buffers[name].dtype]}* __restrict__ m_{name}"

    return [one(n, "const ") for n in reads] + [one(n, "") for n in writes]


def local_types(kernel: Kernel) -> dict[str, str]:
    return {
        s.buffer: COMPUTE_TYPES[stage_dtype(st)] for st in kernel.stages for s in st.local_stores
    }


def needs_wide(region: LoweredRegion, kernel: Kernel) -> bool:
    """Whether an index of ``kernel`` may exceed 31 bits."""
    reads, writes = buffers_of(kernel)
    points = max((kernel.rows * s.points for s in kernel.stages), default=0)
    return max([points, *(region.buffers[b].extent for b in (*reads, *writes))]) >= WIDE


def partial_buffers(
    name: str, reductions: Sequence[tuple[str, Accumulator]], size: int
) -> list[tuple[str, str, PlanBuffer]]:
    """(parameter, C type, plan buffer) for ``size`` partial results of each of ``reductions``."""
    return [
        (f"{member}{n}", ctype, temporary(f"{name}_{member}{n}", PARTIAL_TYPES[ctype], size))
        for n, acc in reductions
        for member, ctype in acc.fields
    ]
