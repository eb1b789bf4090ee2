"""Batches of small GEMMs -> CUDA: a block has several of them in shared memory and multiplies by plain arithmetic.

Reading and writing them takes the time. Tiles for tensor cores would be padding for the most part. Operands come in
and results go out in the order of memory, whatever the order within a matrix. Sums are plain ones over ``k``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, by_memory, merged, points
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    SharedMemory,
    buffers_of,
    local_types,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import block, decompose, indented
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.parameters import integer, require
from cuda_agent_backend.codegen.ir.printer import c_index, literal
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch

SKETCH = "small"
LARGEST = 48
"""Rows, columns and terms up to which matrices are small."""
FEWEST_BATCHES = 512
WORD = 4
"""Elements of an asynchronous copy."""
_TILES = ((3, 4, 256), (4, 4, 256), (3, 4, 128), (2, 4, 256), (4, 5, 128))
"""Rows and columns of a thread's results, threads of a block; best first."""


MOST_RESULTS = 64
"""Of a thread at a time."""


@dataclass(frozen=True)
class SmallLayout:
    """The schedule's parameters."""

    matrices: int = integer("matrices of a block")
    rows: int = integer("rows of results of a thread at a time", most=MOST_RESULTS)
    columns: int = integer("columns of them", most=MOST_RESULTS)
    threads: int = integer("threads of a block", most=MAX_THREADS)


def is_small(found: GemmForm) -> bool:
    """Whether this sketch fits a gemm."""
    plain = all(f.mask is None and not f.absent for f in (found.left, found.right))
    plain = plain and not found.is_half
    fits = max(found.m, found.n, found.k) <= LARGEST and len(found.inner) == 1
    return plain and fits and found.batches >= FEWEST_BATCHES


def small_schedules(found: GemmForm) -> list[dict[str, Parameter]]:
    """Schedules worth trying, best first; none where matrices are not small."""
    result: list[dict[str, Parameter]] = []
    for rows, columns, threads in _TILES if is_small(found) else ():
        tiles = ceildiv(found.m, rows) * ceildiv(found.n, columns)
        matrices = max(WORD, threads // tiles // WORD * WORD)
        names = ("matrices", "rows", "columns", "threads")
        one = dict(zip(names, (matrices, rows, columns, threads), strict=True))
        result.append({"sketch": SKETCH, **one})
    return result


def _read(parameters: Mapping[str, Parameter], found: GemmForm) -> SmallLayout:
    layout = require(SmallLayout, parameters)
    if layout.rows * layout.columns > MOST_RESULTS:
        raise Unsupported("more results of a thread than there may be")
    if not is_small(found):
        raise Unsupported("products that are not small, or masked")
    return layout


def _offset(dims: Sequence[Dim], order: Sequence[Dim]) -> sympy.Expr:
    """Where the loops ``dims`` are in an array over ``order``."""
    own, total, step = {s for s, _ in dims}, sympy.S.Zero, 1
    for symbol, size in reversed(order):
        total += symbol * step if symbol in own else 0
        step *= size
    return sympy.expand(total)


@dataclass
class SmallWriter:
    kernel: Kernel
    found: GemmForm
    region: LoweredRegion
    layout: SmallLayout
    index: str

    def text(self, name: str, memory: SharedMemory) -> str:
        found, layout, kernel = self.found, self.layout, self.kernel
        left = by_memory((*found.rows, *found.inner), found.left.index)
        right = by_memory((*found.inner, *found.columns), found.right.index)
        stored = next(s.index for stage in reversed(kernel.stages) for s in stage.stores)
        made = by_memory((*found.rows, *found.columns), stored)
        for label, dims in (("left", left), ("right", right), ("made", made)):
            memory.take(label, "float", layout.matrices * points(dims), 4)
        parameters = parameters_of(self.region, *buffers_of(kernel))
        lines = [
            "const int tid = threadIdx.x;",
            f"const int first = int(blockIdx.x) * {layout.matrices};",
            f"const int here = ca::imin({layout.matrices}, {found.batches} - first);",
            *self._copy("left", found.left, left),
            *self._copy("right", found.right, right),
            "ca::copy_commit();",
            "ca::copy_wait<0>();",
            "__syncthreads();",
            *self._multiply(left, right, made),
            "__syncthreads();",
            *self._results(made),
        ]
        return "\n".join(
            [
                f'extern "C" __global__ void __launch_bounds__({layout.threads})',
                f"{name}({', '.join(parameters)}) {{",
                "  extern __shared__ __align__(16) unsigned char shared[];",
                *memory.lines,
                *indented(lines),
                "}",
            ]
        )

    def _copy(self, label: str, factor: Factor, dims: Sequence[Dim]) -> list[str]:
        """Bring the matrices of one operand to shared memory, in the order of ``dims``."""
        size, threads = points(dims), self.layout.threads
        start = factor.index.as_coeff_Add()[0]
        lines = merged((*self.found.batch, *dims), factor, "x")
        straight = len(lines.dims) == 1 and lines.step == 1
        if straight and start % WORD == self.layout.matrices * size % WORD == 0:
            source = f"m_{factor.buffer} + {start} + {self.index}(first) * {size}"
            count, whole = f"here * {size}", f"here * {size} / {WORD} * {WORD}"
            return [
                f"for (int e = tid * {WORD}; e < {whole}; e += {threads * WORD})",
                f"  ca::copy_async({label} + e, {source} + e);",
                f"for (int e = {whole} + tid; e < {count}; e += {threads}) {label}[e] = ({source})[e];",
            ]
        body = [
            *decompose(f"(first + ca::idiv(e, {size}))", self.found.batch, self.index),
            *decompose(f"ca::imod(e, {size})", dims, self.index),
            f"{label}[e] = m_{factor.buffer}[{c_index(factor.index)}];",
        ]
        return [
            f"for (int e = tid; e < here * {size}; e += {threads}) {{",
            *indented(body),
            "}",
        ]

    def _multiply(
        self, left: Sequence[Dim], right: Sequence[Dim], made: Sequence[Dim]
    ) -> list[str]:
        """Tiles of results in registers; beyond an edge the last row or column is made again."""
        found, layout = self.found, self.layout
        down, across = ceildiv(found.m, layout.rows), ceildiv(found.n, layout.columns)
        ((k, terms),) = found.inner
        scaled = "" if found.constant == 1 else f"{literal(repr(found.constant), torch.float32)} * "
        body = [
            f"const int b = ca::idiv(q, {down * across}), tile = ca::imod(q, {down * across});",
            f"const int row = ca::idiv(tile, {across}), column = ca::imod(tile, {across});",
            *self._places("left", found.rows, left, made, layout.rows, f"row + {down}"),
            *self._places(
                "right", found.columns, right, made, layout.columns, f"column + {across}"
            ),
            f"float sum[{layout.rows}][{layout.columns}] = {{}};",
            "#pragma unroll",
            f"for (int n = 0; n < {terms}; ++n) {{",
            f"  float x[{layout.rows}], y[{layout.columns}];",
            *indented(self._each("r", f"x[r] = {scaled}left[left_at[r] + n * {_step(k, left)}];")),
            *indented(self._each("c", f"y[c] = right[right_at[c] + n * {_step(k, right)}];")),
            *indented(self._each("rc", "sum[r][c] = fmaf(x[r], y[c], sum[r][c]);")),
            "}",
            *self._each("rc", f"made[b * {points(made)} + left_to[r] + right_to[c]] = sum[r][c];"),
        ]
        return [
            f"for (int q = tid; q < here * {down * across}; q += {layout.threads}) {{",
            *indented(body),
            "}",
        ]

    def _places(
        self,
        label: str,
        own: Sequence[Dim],
        operand: Sequence[Dim],
        made: Sequence[Dim],
        count: int,
        start: str,
    ) -> list[str]:
        """Where the rows or columns of a tile are in the operand, and in the results."""
        out = [f"int {label}_at[{count}], {label}_to[{count}];"]
        for n in range(count):
            out += block(
                [
                    f"const int place = ca::imin({start} * {n}, {points(own) - 1});",
                    *decompose("place", own, "int"),
                    f"{label}_at[{n}] = b * {points(operand)} + {c_index(_offset(own, operand))};",
                    f"{label}_to[{n}] = {c_index(_offset(own, made))};",
                ]
            )
        return out

    def _each(self, names: str, statement: str) -> list[str]:
        """``statement`` for all rows ``r``, columns ``c`` of a tile, or both."""
        counts = {"r": self.layout.rows, "c": self.layout.columns}
        out = []
        for depth, name in enumerate(names):
            out.append("  " * depth + "#pragma unroll")
            out.append("  " * depth + f"for (int {name} = 0; {name} < {counts[name]}; ++{name})")
        return [*out, "  " * len(names) + statement]

    def _results(self, dims: Sequence[Dim]) -> list[str]:
        """Results, and what is made of each of them, in the order of memory."""
        types, made = local_types(self.kernel), dict[str, str]()
        printer = memory_printer(self.region, local_reader(made))
        size = points(dims)
        body = [
            "constexpr int L = 1;",
            *decompose(f"(first + ca::idiv(e, {size}))", self.found.batch, self.index),
            *decompose(f"ca::imod(e, {size})", dims, self.index),
        ]
        for number, stage in enumerate(self.kernel.stages):
            value = "total"
            if number == 0:
                body.append(f"const auto {value} = ca::splat<float, L>(made[e]);")
            else:
                value = f"s{number}v{stage.body.results[0].number}"
                body += printer.lines(stage.body, f"s{number}v")
            body += [printer.store(s.buffer, s.index, value) for s in stage.stores]
            for s in stage.local_stores:
                made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
        return [
            f"for (int e = tid; e < here * {size}; e += {self.layout.threads}) {{",
            *indented(body),
            "}",
        ]


def _step(symbol: sympy.Symbol, order: Sequence[Dim]) -> int:
    """Elements between neighbours along a loop in an array over ``order``."""
    after = [n for _, n in order[[s for s, _ in order].index(symbol) + 1 :]]
    return math.prod(after)


def emit_small(
    problem: Problem, found: GemmForm, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the schedule does not fit."""
    kernel, region, device = problem.kernel, problem.region, problem.device
    layout = _read(parameters, found)
    memory = SharedMemory()
    index = "int64_t" if needs_wide(region, kernel) else "int"
    text = SmallWriter(kernel, found, region, layout, index).text(name, memory)
    if memory.size > device.shared_per_block_bytes:
        raise Unsupported(f"{memory.size} bytes of shared memory")
    grid, (reads, writes) = ceildiv(found.batches, layout.matrices), buffers_of(kernel)
    launch = Launch(name, (grid, 1, 1), (layout.threads, 1, 1), memory.size, (*reads, *writes))
    return Emitted((text,), (launch,))
