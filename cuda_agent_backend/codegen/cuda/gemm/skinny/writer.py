"""GEMMs with few columns -> CUDA: each thread adds up all columns of a few neighbouring rows in registers.

Convolutions to few channels are such, transposed or not: of a tile for tensor cores most would be padding. Rows are
places of an image, neighbours in memory along the innermost loop, which is that of a warp's lanes. A thread's own
``rows`` follow each other in another loop, as most of what one window reads the next one reads as well. All taps of
the window are written out, so taps that a phase of a transposed convolution lacks cost nothing. Over the other terms
(channels) there is a loop, whose factors all threads of a block read from shared memory. Arithmetic is plain float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sympy

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, points
from cuda_agent_backend.codegen.cuda.common.flat_loops import Flat, flat_body
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import (
    Emitted,
    buffers_of,
    local_types,
    needs_wide,
    parameters_of,
)
from cuda_agent_backend.codegen.cuda.common.text import block, decompose, indented
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import holds
from cuda_agent_backend.codegen.cuda.gemm.operands import in_vectors
from cuda_agent_backend.codegen.cuda.gemm.skinny.conditions import condition_text
from cuda_agent_backend.codegen.cuda.gemm.skinny.match import (
    Point,
    SkinnyLoops,
    points_in,
    skinny_loops_of,
)
from cuda_agent_backend.codegen.cuda.gemm.skinny.schedules import (
    MOST_PLACES,
    MOST_PRODUCTS,
    MOST_SUMS,
    THREADS,
    SkinnyParams,
    fits_thread,
)
from cuda_agent_backend.codegen.cuda.pointwise.tile_printer import Ranges
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.parameters import require
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter
from sandbox.plan.plan import Launch

RESIDENT = 3
"""Blocks of a multiprocessor that registers are left for."""
CHUNK_BYTES = 24 << 10
"""Of shared memory for factors, so that several blocks have room."""
TOP = sympy.Symbol("top", integer=True, nonnegative=True)
"""The first of a thread's rows."""


@dataclass(frozen=True)
class _Product:
    """Row, column (a point of the columns' loops, by number), and numbers of the left and the right element."""

    row: int
    column: int
    place: int
    factor: int


@dataclass
class SkinnyWriter:
    """Writes the kernel. ``places``: distances and conditions of the left elements that a thread reads, by number."""

    kernel: Kernel
    found: GemmForm
    region: LoweredRegion
    shape: SkinnyLoops
    rows: int
    threads: int
    index: str
    places: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.products = list(self._products())

    # --- what is known while writing ---

    @property
    def terms(self) -> int:
        """Turns of the loop."""
        return self.shape.loop[1] if self.shape.loop is not None else 1

    @property
    def padded(self) -> int:
        """Numbers in shared memory for one turn."""
        return ceildiv(points(self.shape.factors), 4) * 4

    @property
    def chunk(self) -> int:
        """Turns whose factors are in shared memory at a time."""
        most = max(1, CHUNK_BYTES // (4 * self.padded))
        return ceildiv(self.terms, ceildiv(self.terms, most))

    @property
    def work(self) -> tuple[Dim, ...]:
        """The loops that threads share among them."""
        tall = self.shape.tall
        return tuple(
            (s, ceildiv(n, self.rows) if (s, n) == tall else n) for s, n in self.shape.flat
        )

    def _products(self) -> Iterator[_Product]:
        shape, right = self.shape, self.found.right
        for number, column in enumerate(points_in(shape.columns)):
            for tap in points_in(shape.taps):
                at = {**column, **tap}
                if right.mask is not None and not holds(right.mask, at):
                    continue
                factor = 0
                for symbol, size in shape.factors:
                    factor = factor * size + at[symbol]
                for row in range(self.rows):
                    yield _Product(row, number, self._place(row, at), factor)

    def _place(self, row: int, at: Point) -> int:
        index, change = self.found.left.index, self._moved(row, at)
        start = index.xreplace(self._moved(0, dict.fromkeys(at, 0)))
        distance = sympy.expand(index.xreplace(change) - start)
        if not distance.is_Integer:
            raise Unsupported("a factor whose places are not evenly spaced")
        mask = self.found.left.mask
        there = "" if mask is None else condition_text(mask, change, self._ranges())
        return self.places.setdefault((int(distance), there), len(self.places))

    def _moved(self, row: int, at: Point) -> dict[sympy.Symbol, sympy.Expr]:
        change: dict[sympy.Symbol, sympy.Expr] = {s: sympy.Integer(n) for s, n in at.items()}
        if self.shape.tall is not None:
            change[self.shape.tall[0]] = TOP + row
        return change

    def _ranges(self) -> Ranges:
        found = {s: (0, n - 1) for s, n in (*self.shape.flat, *self.shape.grid)}
        if self.shape.tall is not None:
            found[TOP] = (0, self.shape.tall[1] - self.rows)
        return found

    # --- text ---

    def text(self, name: str) -> str:
        parameters = parameters_of(self.region, *buffers_of(self.kernel))
        unroll = 2 if len(self.products) <= MOST_PRODUCTS // 2 else 1
        lines = [
            "extern __shared__ __align__(16) unsigned char shared[];",
            "float* const factors = reinterpret_cast<float*>(shared);",
            *self._rows(),
            *self._take(),
            *(f"float {_sum(r, c)} = 0.f;" for r in range(self.rows) for c in range(self.shape.results)),
            f"for (int start = 0; start < {self.terms}; start += {self.chunk}) {{",
            f"  const int here = ca::imin({self.chunk}, {self.terms} - start);",
            *(["  __syncthreads();"] if self.chunk < self.terms else []),
            *indented(self._bring()),
            "  __syncthreads();",
            f"#pragma unroll {unroll}",
            "  for (int turn = 0; turn < here; ++turn) {",
            *indented(self._turn(), "    "),
            "  }",
            "}",
            "if (!live) return;",
            *self._exact(),
            f"constexpr int L = {self._vector()[1]};",
            *(line for r in range(self.rows) for line in self._store(r)),
        ]  # fmt: skip
        crowded = self.threads == THREADS and self.rows * self.shape.results > MOST_SUMS // 2
        bound = f", {RESIDENT}" if crowded else ""
        head = f'extern "C" __global__ void __launch_bounds__({self.threads}{bound})'
        return "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(lines), "}"])

    def _rows(self) -> list[str]:
        """Where this thread works: some have nothing to do but to bring factors."""
        work, tall, index = self.work, self.shape.tall, self.index
        group = sympy.Symbol("group")
        named = [
            (group if d == tall else d[0], n)
            for d, (_, n) in zip(self.shape.flat, work, strict=True)
        ]
        first = (
            f"const {index} {TOP} = ca::imin(group * {self.rows}, {tall[1] - self.rows});"
            if tall
            else ""
        )
        return [
            *decompose("int(blockIdx.y)", self.shape.grid, index),
            f"const {index} own_number = {index}(blockIdx.x) * {self.threads} + threadIdx.x;",
            f"const bool live = own_number < {points(work)};",
            f"const {index} number = live ? own_number : {points(work) - 1};",
            *decompose("number", named, index),
            *([first] if first else []),  # the last thread of a line makes some rows again
        ]  # fmt: skip

    def _take(self) -> list[str]:
        """``take``: the left elements of a turn; what is beside the image is found out once."""
        left, bits, reads = self.found.left, [], []
        words = ceildiv(len(self.places), 32)
        for (distance, there), n in self.places.items():
            if there == "false":
                reads.append(f"to[{n}] = 0.f;")
                continue
            read = f"place[{distance}]"
            if there:
                bits.append(f"bits{n // 32} |= unsigned({there}) << {n % 32};")
                read = f"bits{n // 32} >> {n % 32} & 1 ? {read} : 0.f"
            reads.append(f"to[{n}] = {read};")
        written = dict.fromkeys((s for s, _ in (*self.shape.columns, *self.found.inner)), 0)
        start = left.index.xreplace(self._moved(0, written))
        return [
            *(f"unsigned bits{n} = 0;" for n in range(words if bits else 0)),
            *bits,
            f"const float* place = m_{left.buffer} + {c_index(sympy.expand(start))};",
            f"auto take = [&](float (&to)[{len(self.places)}]) {{",
            *indented(reads),
            "};",
            f"float x[{len(self.places)}], next[{len(self.places)}];",
            "take(x);",
        ]

    def _bring(self) -> list[str]:
        """The right factors of a chunk, to shared memory."""
        right, shape, count = self.found.right, self.shape, points(self.shape.factors)
        there = "" if right.mask is None else condition_text(right.mask, {}, {})
        read = f"m_{right.buffer}[{c_index(right.index)}]"
        loop = (
            [f"const int {shape.loop[0]} = start + i / {count};"] if shape.loop is not None else []
        )
        body = [
            f"const int number = i % {count};",
            *loop,
            *decompose("number", shape.factors, "int"),
            f"factors[i / {count} * {self.padded} + number] = {f'{there} ? {read} : 0.f' if there else read};",
        ]
        return [
            f"for (int i = threadIdx.x; i < here * {count}; i += {self.threads}) {{",
            *indented(body),
            "}",
        ]  # fmt: skip

    def _turn(self) -> list[str]:
        """One term of the loop: all its products, while the elements of the next one are under way."""
        step = 0
        if self.shape.loop is not None:
            step = coefficient(self.found.left.index, self.shape.loop[0]) or 0
        out = [
            f"if (start + turn + 1 < {self.terms}) place += {step};",
            "take(next);",
            f"const float* const own = factors + turn * {self.padded};",
        ]
        word = -1
        for p in sorted(self.products, key=lambda p: p.factor):
            if p.factor // 4 != word:
                word = p.factor // 4
                out.append(
                    f"const float4 w{word} = *reinterpret_cast<const float4*>(own + {4 * word});"
                )
            total = _sum(p.row, p.column)
            out.append(f"{total} = fmaf(x[{p.place}], w{word}.{'xyzw'[p.factor % 4]}, {total});")
        return [
            *out,
            "#pragma unroll",
            f"for (int i = 0; i < {len(self.places)}; ++i) x[i] = next[i];",
        ]  # fmt: skip

    def _exact(self) -> list[str]:
        """A sum anew without the terms that are missing: what an infinity times 0 spoilt."""
        left, right, shape = self.found.left, self.found.right, self.shape
        if not left.absent:
            return []
        masks = [f.mask for f in (left, right) if f.mask is not None]
        there = " && ".join(c for m in masks if (c := condition_text(m, {}, {}))) or "true"
        read = [f"m_{f.buffer}[{c_index(f.index)}]" for f in (left, right)]
        body = [
            *decompose("column", shape.columns, "int"),
            *(
                [f"const {self.index} {shape.tall[0]} = {TOP} + row;"]
                if shape.tall is not None
                else []
            ),
            "float total = 0.f;",
            "#pragma unroll 1",
            f"for (int k = 0; k < {self.found.k}; ++k) {{",
            *indented(decompose("k", self.found.inner, "int")),
            f"  if ({there})",
            f"    total = fmaf({read[0]}, {read[1]}, total);",
            "}",
            "return total;",
        ]
        return ["auto exact = [&](int row, int column) {", *indented(body), "};"]

    def _vector(self) -> tuple[Dim, int]:
        """The columns' loop whose neighbours are stored together, and how many."""
        stores = [s.index for stage in self.kernel.stages for s in stage.stores]
        columns = self.shape.columns
        ways = [
            (v, -n, d) for v in (4, 2) for n, d in enumerate(columns) if in_vectors(d, stores, v)
        ]
        return max(((d, v) for v, _, d in ways), key=lambda way: way[1], default=(columns[-1], 1))

    def _store(self, row: int) -> list[str]:
        """What is made of a row's sums, neighbours in memory together."""
        (lane, _), width = self._vector()
        numbers = {tuple(at.values()): n for n, at in enumerate(points_in(self.shape.columns))}
        out = []
        for at in points_in(self.shape.columns):
            if at[lane] % width:
                continue
            group = [numbers[tuple({**at, lane: at[lane] + i}.values())] for i in range(width)]
            sums = ", ".join(_sum(row, n) for n in group)
            lines = [f"auto total = ca::vec<float, L>{{{{{sums}}}}};"]
            if self.found.left.absent:
                lines += [
                    f"if (!(fabsf(total.v[{i}]) < 3.402823466e38f)) total.v[{i}] = exact({row}, {n});"
                    for i, n in enumerate(group)
                ]
            out += block([*lines, *self._tail(row, at, lane, width)])
        return out

    def _tail(self, row: int, at: Point, lane: sympy.Symbol, width: int) -> list[str]:
        others = {s: n for s, n in at.items() if s != lane}
        moved = Flat(self._moved(row, others), ())
        types, made = local_types(self.kernel), dict[str, str]()
        printer = memory_printer(self.region, local_reader(made), lane, width)
        out = [f"const int {lane} = {at[lane]};"]
        for number, stage in enumerate(self.kernel.stages):
            value = "total"
            if number:
                value = f"s{number}v{stage.body.results[0].number}"
                out += printer.lines(flat_body(stage.body, moved), f"s{number}v")
            out += [printer.store(s.buffer, moved.of(s.index), value) for s in stage.stores]
            for s in stage.local_stores:
                made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
        return out


def _sum(row: int, column: int) -> str:
    return f"sum{row}_{column}"


def emit_skinny(
    problem: Problem, found: GemmForm, parameters: Mapping[str, Parameter], name: str
) -> Emitted:
    """Raises Unsupported where the kernel is no such GEMM, or the schedule does not fit."""
    kernel, region, device = problem.kernel, problem.region, problem.device
    shape = skinny_loops_of(found)
    if shape is None:
        raise Unsupported("no sum of products with few columns")
    given = require(SkinnyParams, parameters)
    rows, threads = given.rows, given.threads
    if not fits_thread(shape, rows):
        raise Unsupported(f"{rows} rows for each of {threads} threads")
    index = "int64_t" if needs_wide(region, kernel) else "int"
    writer = SkinnyWriter(kernel, found, region, shape, rows, threads, index)
    shared = 4 * writer.chunk * writer.padded
    if len(writer.places) > MOST_PLACES or shared > device.shared_per_block_bytes:
        raise Unsupported(f"{len(writer.places)} elements a turn, {shared} bytes of shared memory")
    grid = (ceildiv(points(writer.work), threads), max(1, points(shape.grid)), 1)
    reads, writes = buffers_of(kernel)
    launch = Launch(name, grid, (threads, 1, 1), shared, (*reads, *writes))
    return Emitted((writer.text(name),), (launch,))
