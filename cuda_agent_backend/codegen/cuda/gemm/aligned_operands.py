"""Copies of operands whose lines do not begin at multiples of 16 bytes, as in matrices with odd numbers of columns.

A kernel before the GEMM copies such operands to memory of its own, from where they can be copied 16 bytes at a time.
Quantized operands become numbers there, for GEMMs whose time is that of their arithmetic.

In the copy the lines of an operand, its rows or its terms, lie one after the other. Each begins at a multiple of
`PITCH_BYTES` and is filled up with zeros. Where zeros are read as terms beyond the last one, the other operand has
zeros as well. Where they are read as rows, results are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, Lines, points
from cuda_agent_backend.codegen.cuda.common.parts import parameters_of, temporary
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.operands import COPY_BYTES, Side, side_of
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.indices import row_major
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch

PITCH_BYTES = 32
"""A sector of memory, so that what is read of a line is whole ones."""
THREADS = 256
RESIDENT = 8
"""Blocks of the copying kernel on a multiprocessor."""

# Estimates for an H200. Large products with an odd number of columns were measured at 50 to 66e12 operations per
# second, aligned ones at 109e12; how fast a kernel copies and how long a launch takes is assumed.
OPERATIONS_PER_SECOND = 60e12
HALF_OPERATIONS_PER_SECOND = 250e12  # assumed
SAVED = 0.4
BYTES_PER_SECOND = 3e12
LAUNCH_SECONDS = 3e-6


@dataclass(frozen=True)
class Aligned:
    """An operand as it is (``source``) and as the products read it (``side``), in ``buffer``."""

    source: Side
    side: Side
    batch: tuple[Dim, ...]
    buffer: Buffer

    @property
    def lines(self) -> Lines:
        """Of the source: the loops along a line, and (`others`) over lines."""
        return self.source.inner if self.source.along_k else self.source.rows

    @property
    def others(self) -> Lines:
        return self.source.rows if self.source.along_k else self.source.inner

    @property
    def word(self) -> int:
        """Elements that are copied at a time."""
        return word_of(self.buffer.dtype)

    @property
    def temporary(self) -> PlanBuffer:
        return temporary(self.buffer.name, self.buffer.dtype, self.buffer.extent)

    def loop(self, index: str) -> list[str]:
        """All threads of the grid copy: neighbours take neighbouring words of a line."""
        size, count = points(self.lines.dims), points(self.others.dims)
        words = self.buffer.shape[1] // self.word
        factor = self.source.factor
        element = f"ca::widen(m_{factor.buffer}[{c_index(self.source.index)}])"
        if factor.is_quantized:
            element = f"float(int({element}) - {factor.zero})"
        body = [
            f"const {index} word = ca::imod(i, {words}), number = ca::idiv(i, {words});",
            *([f"const {index} batch = ca::idiv(number, {count});"] if self.batch else []),
            *decompose("batch", self.batch, index),
            f"const {index} line = ca::imod(number, {count});",
            *decompose("line", self.others.dims, index),
            f"ca::vec<float, {self.word}> copied;",
            "#pragma unroll",
            f"for (int e = 0; e < {self.word}; ++e) {{",
            f"  const {index} at = word * {self.word} + e;",
            *indented(decompose("at", self.lines.dims, index)),
            f"  copied.v[e] = at < {size} ? {element} : 0.f;",
            "}",
            f"ca::store<{self.word}>(m_{self.buffer.name} + i * {self.word}, copied);",
        ]
        return [
            f"for ({index} i = {index}(blockIdx.x) * {THREADS} + threadIdx.x; i < {self.buffer.extent // self.word};",
            f"     i += {index}(gridDim.x) * {THREADS}) {{",
            *indented(body),
            "}",
        ]


def sides_of(c: GemmForm) -> tuple[Side, Side]:
    """How the operands are copied from where they are."""
    left, right = (COPY_BYTES if f.is_quantized else word_of(c.dtype) for f in (c.left, c.right))
    return (
        side_of("a", c.left, c.rows, c.inner, left, windows=bool(c.window)),
        side_of("b", c.right, c.columns, c.inner, right),
    )


def word_of(dtype: torch.dtype) -> int:
    """Elements in the widest copy."""
    return COPY_BYTES // dtype.itemsize


def aligned_sides(c: GemmForm, region: LoweredRegion, name: str) -> list[Aligned]:
    """The operands that can be aligned and are not, in memory named after ``name``."""
    if c.right.absent:  # blocks then take terms out of order
        return []
    found = (_aligned(side, c, region, f"{name}_{side.name}") for side in sides_of(c))
    return [one for one in found if one is not None]


def _aligned(side: Side, c: GemmForm, region: LoweredRegion, name: str) -> Aligned | None:
    """None where the operand is masked, aligned, of two buffers or not contiguous along any loop, or elements of it are
    read more often than once, as by windows that overlap: its copy would be larger."""
    along, others = (side.inner, side.rows) if side.along_k else (side.rows, side.inner)
    aligned = side.vector == word_of(c.dtype) and not side.factor.is_quantized
    if side.factor.mask is not None or side.factor.other is not None or aligned or along.step != 1:
        return None
    size, count, batches = points(along.dims), points(others.dims), points(c.batch)
    if batches * count * size > region.buffers[side.factor.buffer].extent:
        return None
    pitch = ceildiv(size * c.dtype.itemsize, PITCH_BYTES) * PITCH_BYTES // c.dtype.itemsize
    place, line = _symbol(f"{side.name}_place"), _symbol(f"{side.name}_line")
    index = sympy.expand((row_major(c.batch) * count + line) * pitch + place)
    own, other = Lines(((place, size),), index), Lines(((line, count),), index)
    rows, inner = (other, own) if side.along_k else (own, other)
    made = Side(side.name, Factor(name, index, None), rows, inner, side.along_k, word_of(c.dtype))
    shape = (batches * count, pitch)  # padding included, as it is written too
    buffer = Buffer(name, "temporary", c.dtype, shape, (pitch, 1))
    return Aligned(side, made, c.batch, buffer)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)


def copying(
    copies: Sequence[Aligned], region: LoweredRegion, name: str, index: str, device: DeviceFacts
) -> tuple[str, Launch]:
    """The kernel that aligns operands. ``region``: with their buffers."""
    reads = sorted({one.source.factor.buffer for one in copies})
    writes = [one.buffer.name for one in copies]
    parameters = parameters_of(region, reads, writes)
    body = [line for one in copies for line in one.loop(index)]
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    text = "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(body), "}"])
    words = max(one.buffer.extent // one.word for one in copies)
    blocks = min(ceildiv(words, THREADS), RESIDENT * device.sm_count)
    return text, Launch(name, (blocks, 1, 1), (THREADS, 1, 1), 0, (*reads, *writes))


def aligning_pays(c: GemmForm, copies: Sequence[Aligned]) -> bool:
    """Whether reading and writing ``copies`` takes less time than the products then save."""
    rate = HALF_OPERATIONS_PER_SECOND if c.is_half else OPERATIONS_PER_SECOND
    saved = SAVED * 2 * c.batches * c.m * c.n * c.k / rate
    copied = sum(2 * c.dtype.itemsize * one.buffer.extent for one in copies)
    return bool(copies) and saved > copied / BYTES_PER_SECOND + LAUNCH_SECONDS
