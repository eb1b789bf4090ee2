"""Convolutions in float32 -> CUDA on tensor cores, where a block copies and splits its part of the image once.

See ``halo.cuh``. A kernel before splits the weights, in the order in which the tensor cores take them. Schedule
parameters: see `params`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.lane_printer import is_aligned
from cuda_agent_backend.codegen.cuda.common.parts import Emitted, parameters_of, temporary
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.conv.halo.match import Halo, halo_of
from cuda_agent_backend.codegen.cuda.conv.halo.params import read_box
from cuda_agent_backend.codegen.cuda.conv.halo.sizes import (
    CHUNK,
    PIECE,
    is_narrow,
    place_bytes,
    steps_of,
)
from cuda_agent_backend.codegen.cuda.family import Problem
from cuda_agent_backend.codegen.cuda.gemm.facts import MAX_BATCHES
from cuda_agent_backend.codegen.cuda.gemm.lines import mask_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Output
from cuda_agent_backend.codegen.cuda.gemm.templates import HaloConvolution, HaloTile, Template
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.schedule import Parameter
from cuda_agent_backend.codegen.ir.value_types import WIDE
from sandbox.plan.plan import Launch

PRELUDE = "cuda/conv/halo/halo.cuh"
SKETCH = "halo"
WEIGHT_THREADS = 256
MAX_GRID = 1 << 30


@dataclass
class HaloWriter(GemmWriter):
    """Writes the kernels of a convolution whose blocks have boxes. ``tiles`` has the sizes that follow from ``box``."""

    halo: Halo
    box: tuple[int, ...]
    parts: int
    """That numbers are split into."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.index != "int":
            raise Unsupported("an image of more elements than 32 bits count")

    def _output(self) -> Output:
        """Results that are stored together lie in one line of the box."""
        found = super()._output()
        if not found.by_rows:
            return found
        return replace(
            found, vector=next(v for v in (4, 2, 1) if v <= found.vector and self.box[-1] % v == 0)
        )

    def emit(self) -> Emitted:
        self.check()
        made, launch = self._weights()
        own = temporary(self._split_weights, torch.int32, self.weight_words)
        return Emitted((made, self._text(self.store_tail())), (launch, self._launch()), (own,))

    def check(self) -> None:
        """Raises Unsupported where the schedule does not fit."""
        if self.weight_words >= WIDE:
            raise Unsupported("split weights of more words than 32 bits count")
        self.tiles.check(self.shared_bytes, self.device)
        batches = self.gemm.batches
        if self.grid[0] * self.grid[1] > MAX_GRID or batches > MAX_BATCHES:
            raise Unsupported(f"{self.grid} blocks for each of {batches} groups")

    # --- sizes ---

    @property
    def positions(self) -> int:
        """Of the image, with the halo."""
        return math.prod(self.halo.places(self.box))

    @property
    def shared_bytes(self) -> int:
        t = self.tiles
        columns = self.stored_columns
        high, wide = (columns, t.tile_m) if self.output.by_rows else (t.tile_m, columns)
        return max(self.positions * place_bytes(self.parts), 4 * high * (wide + 4))

    @property
    def grid(self) -> tuple[int, int]:
        return self.halo.boxes(self.box), ceildiv(self.outputs, self.tiles.tile_n)

    @property
    def outputs(self) -> int:
        """Columns that tiles share out."""
        return self.gemm.n

    @property
    def own_rows(self) -> int:
        return math.prod(self.box)

    @property
    def steps(self) -> int:
        return steps_of(self.halo)

    @property
    def weight_words(self) -> int:
        """Of the weights' parts, and of one step behind them that is read and not used."""
        wide = self.grid[1]
        return (self.gemm.batches * wide * self.steps + 1) * self._step_words

    @property
    def _step_words(self) -> int:
        return self.parts * self.tiles.tile_n * CHUNK // 2

    # --- text ---

    @property
    def _split_weights(self) -> str:
        return f"{self.name}_split"

    def _weights(self) -> tuple[str, Launch]:
        """The kernel that splits weights: one word of each part by a thread, in the order in which lanes read them."""
        c, t, right = self.gemm, self.tiles, self.gemm.right
        together = 1 if t.warp_n // 8 % 2 else 2
        part = t.tile_n * CHUNK // 2
        words = self.weight_words // self.parts  # those of the last step are zeros
        name = f"{self.name}_weights"
        (channel, count), taps = self.halo.channel, self.halo.tap_count
        body = [
            f"const int i = blockIdx.x * {WEIGHT_THREADS} + threadIdx.x;",
            f"if (i >= {words}) return;",
            f"const int word = i % {part}, number = i / {part}, step = number % {self.steps}, e = word % 2;",
            f"const int fragment = word / {64 * together} * {together} + word / 2 % {together};",
            f"const int lane = word / {2 * together} % 32;",
            f"const int batch = number / {self.steps * self.grid[1]}, tile_n = number / {self.steps} % {self.grid[1]};",
            f"const int output = tile_n * {t.tile_n} + fragment * 8 + lane / 4;",
            "int tap, first;",
            *self._step_lines(),
            *decompose("batch", c.batch, "int"),
            *decompose("column", c.columns, "int"),
            *decompose("tap", self.halo.taps, "int"),
            "float both[2];",
            "#pragma unroll",
            "for (int k = 0; k < 2; ++k) {",
            f"  const int {channel} = first + lane % 4 * 2 + k;",
            f"  const bool inside = tap < {taps} && {channel} < {count};",
            f"  const bool there = inside && batch < {c.batches} && output < {self.outputs};",
            f"  both[k] = there ? m_{right.buffer}[{c_index(right.index)}] : 0.f;",
            "}",
            f"ca::split_into<{self.parts}, 1> made;",
            "made.set(0, both);",
            "#pragma unroll",
            f"for (int p = 0; p < {self.parts}; ++p)",
            f"  {self._split_weights}[number * {self._step_words} + p * {part} + word] = int(made.part[p][0]);",
        ]
        parameters = [
            *parameters_of(self.region, [right.buffer], []), f"int* __restrict__ {self._split_weights}"
        ]  # fmt: skip
        head = f'extern "C" __global__ void __launch_bounds__({WEIGHT_THREADS})'
        text = "\n".join([head, f"{name}({', '.join(parameters)}) {{", *indented(body), "}"])
        grid = (ceildiv(words, WEIGHT_THREADS), 1, 1)
        arguments = (right.buffer, self._split_weights)
        return text, Launch(name, grid, (WEIGHT_THREADS, 1, 1), 0, arguments)

    def _step_lines(self) -> list[str]:
        """``tap`` and ``first``, the first channel, of half ``e`` of a step; ``column``."""
        taps, count = self.halo.tap_count, self.halo.channel[1]
        tap, first = f"step % {taps}", f"step / {taps} * {CHUNK} + {PIECE} * e"
        if is_narrow(count):
            last = count // CHUNK * taps
            tap = f"step < {last} ? {tap} : 2 * (step - {last}) + e"
            first = f"step < {last} ? {first} : {count // CHUNK * CHUNK}"
        return [f"tap = {tap}, first = {first};", "const int column = output;"]

    def _launch(self) -> Launch:
        high, wide = self.grid
        arguments = (*self.reads, self._split_weights, *self.writes)
        blocks, threads = (high * wide, self.gemm.batches, 1), (self.tiles.threads, 1, 1)
        return Launch(self.name, blocks, threads, self.shared_bytes, arguments)

    def _text(self, tail: Sequence[str]) -> str:
        c, t, left = self.gemm, self.tiles, self.gemm.left
        apart = coefficient(left.index, self.halo.channel[0])
        weights = f"{self._split_weights} + (batch * {self.grid[1]} + tile_n) * {self.steps * self._step_words}"
        rows, columns = t.tile_m, self.stored_columns
        body = [
            "extern __shared__ __align__(16) unsigned char shared[];",
            "float* const memory = reinterpret_cast<float*>(shared);",
            f"const int tile_n = blockIdx.x % {self.grid[1]}, end = {c.k};",
            "const int batch = blockIdx.y;",
            *decompose("batch", c.batch, "int"),
            *self._corner(),
            *self._place_of_position(),
            *self._place_of_row(),
            *self._distance_of_tap(),
            *self._find(self.left, c.m),
            *self._find(self.right, c.n),
            f"{self._sums} sums;",
            f"sums.add(memory, m_{left.buffer}, {apart}, {weights}, place, window, behind);",
            f"constexpr int first_thread = 0, own_threads = {t.threads};",
            f"constexpr int stride = {(rows if self.output.by_rows else columns) + 4};",
            *self._stored(tail),
        ]
        parameters = [
            *parameters_of(self.region, self.reads, []), f"const int* __restrict__ {self._split_weights}",
            *parameters_of(self.region, [], self.writes),
        ]  # fmt: skip
        head = f'extern "C" __global__ void __launch_bounds__({self._bound})'
        return "\n".join([head, f"{self.name}({', '.join(parameters)}) {{", *indented(body), "}"])

    @property
    def _bound(self) -> str:
        """Threads of a block, and how many blocks a multiprocessor is to have registers for."""
        return str(self.tiles.threads)

    @property
    def _sums(self) -> Template:
        """The type that multiplies and adds up."""
        taps, near, parts = self.halo.tap_count, self._near, self.parts
        return HaloConvolution(self._tile_of_positions, taps=taps, near=near, parts=parts)

    @property
    def _tile_of_positions(self) -> HaloTile:
        t = self.tiles
        return HaloTile(
            tile_m=t.tile_m,
            tile_n=t.tile_n,
            warp_m=t.warp_m,
            warp_n=t.warp_n,
            positions=self.positions,
            channels=self.halo.channel[1],
        )

    def _stored(self, tail: Sequence[str]) -> list[str]:
        return [
            f"const int column0 = tile_n * {self.tiles.tile_n};",
            f"sums.each(0, [&](int m, int n, float v) {{ memory[{self._to}] = v; }});",
            "__syncthreads();",
            *tail,
        ]

    @property
    def _to(self) -> str:
        """Where a sum goes in shared memory."""
        return "n * stride + m" if self.output.by_rows else "m * stride + n"

    @property
    def _near(self) -> int:
        """Channels that are next to each other in memory and copied together; 0 where they lie apart."""
        (channel, count), index = self.halo.channel, self.gemm.left.index
        if coefficient(index, channel) != 1:
            return 0
        return next(
            (v for v in (4, 2) if count % v == 0 and is_aligned(index, channel, 1, v, v)), 1
        )

    def _corner(self) -> list[str]:
        """``first_<row>``: the box's first row, by loop."""
        counts = [
            (sympy.Symbol(f"box_{axis.row[0]}"), ceildiv(axis.row[1], rows))
            for axis, rows in zip(self.halo.axes, self.box, strict=True)
        ]
        corners = (
            f"const int first_{axis.row[0]} = {symbol} * {rows};"
            for axis, rows, (symbol, _) in zip(self.halo.axes, self.box, counts, strict=True)
        )
        number = f"int(blockIdx.x / {self.grid[1]})"
        return [*decompose(number, counts, "int"), *corners]

    def _place_of_position(self) -> list[str]:
        """``place``: the element of the image's first channel at a position of the halo, and whether there is one."""
        left, lines, inside = self.gemm.left, [f"const int {self.halo.channel[0]} = 0;"], []
        sizes = self.halo.places(self.box)
        moved = [sympy.Symbol(f"by_{axis.row[0]}") for axis in self.halo.axes]
        for axis, place in zip(self.halo.axes, moved, strict=True):
            first = sympy.Symbol(f"first_{axis.row[0]}")
            lines += [f"const int {s} = {c_index(e)};" for s, e in axis.at(first, place).items()]
            inside.append(f"{axis.step} * {first} + {place} < {axis.places(axis.row[1])}")
        if left.mask is not None:
            lines += mask_lines(left.mask, self._dtype)
            inside.append("present")
        return [
            "auto place = [&](int position, bool& there) {",
            *indented(decompose("position", list(zip(moved, sizes, strict=True)), "int")),
            *indented(
                [*lines, f"there = {' && '.join(inside)};", f"return {c_index(left.index)};"]
            ),
            "};",
        ]

    def _place_of_row(self) -> list[str]:
        """``window``: the position that a row's window begins at; rows beyond the box share the last one's."""
        own = [(sympy.Symbol(f"o{n}"), rows) for n, rows in enumerate(self.box)]
        moved = sum(
            axis.step * distance * symbol
            for axis, distance, (symbol, _) in zip(
                self.halo.axes, self._distances, own, strict=True
            )
        )
        least = f"const int row = ca::imin(m, {self.own_rows - 1});"
        return [
            "auto window = [&](int m) {",
            *indented(
                [least, *decompose("row", own, "int"), f"return {c_index(sympy.sympify(moved))};"]
            ),
            "};",
        ]

    def _distance_of_tap(self) -> list[str]:
        """``behind``: positions from a window's first to that of a tap."""
        moved = sum(
            axis.spread * distance * axis.taps[0]
            for axis, distance in zip(self.halo.axes, self._distances, strict=True)
            if axis.taps is not None
        )
        return [
            "auto behind = [&](int tap) {",
            *indented(
                [
                    *decompose("tap", self.halo.taps, "int"),
                    f"return {c_index(sympy.sympify(moved))};",
                ]
            ),
            "};",
        ]

    @property
    def _distances(self) -> list[int]:
        """Positions from one place of an axis to the next."""
        sizes = self.halo.places(self.box)
        return [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]

    @property
    def _is_column(self) -> str:
        """Whether a column of a tile is none beyond the last."""
        return f"column < {self.gemm.n}"

    def _each_result(self, body: Sequence[str]) -> list[str]:
        """Row by row, where a thread's results are in few: what there is to work out of a row takes long enough."""
        v, t, columns = self.output.vector, self.tiles, self.stored_columns
        near = self.output.across // v
        if not (self.output.by_rows or near):
            return super()._each_result(body)
        lines = t.tile_m // v if self.output.by_rows else t.tile_m * near
        teams = max(1, t.threads // lines)
        if t.threads > lines * teams:
            return super()._each_result(body)
        m, n, count = f"own * {v}", "group", columns
        if not self.output.by_rows:
            m, n = f"own / {near}", f"group * {near * v} + own % {near} * {v}"
            count = columns // (near * v)
        first = f"threadIdx.x / {lines}" if teams > 1 else "0"
        within = [*self._column_of(n), *body]
        each = [
            *self._row_of(m),
            f"for (int group = {first}; group < {count}; group += {teams}) {{",
            *indented(within),
            "}",
        ]
        return [
            f"constexpr int L = {v};",
            f"for (int own = threadIdx.x % {lines}; own < {lines}; own += own_threads) {{",
            *indented(each),
            "}",
        ]

    def _numbered(self, m: str, n: str) -> list[str]:
        return [*self._row_of(m), *self._column_of(n)]

    def _column_of(self, n: str) -> list[str]:
        inside = (
            [f"if (!({self._is_column})) continue;"] if self.outputs % self.tiles.tile_n else []
        )
        return [f"const int n = {n}, column = column0 + n;", *inside]

    def _row_of(self, m: str) -> list[str]:
        own: list[Dim] = [(sympy.Symbol(f"o{i}"), rows) for i, rows in enumerate(self.box)]
        inside, row = [], ""
        if self.own_rows < self.tiles.tile_m:
            inside.append(f"m < {self.own_rows}")
        places = []
        for axis, (symbol, rows) in zip(self.halo.axes, own, strict=True):
            name, size = axis.row
            places.append(f"const int y{symbol} = first_{name} + {symbol};")
            if size % rows:
                inside.append(f"y{symbol} < {size}")
            row = f"({row}) * {size} + y{symbol}" if row else f"y{symbol}"
        return [
            f"const int m = {m};",
            *decompose("m", own, "int"),
            *places,
            *([f"if (!({' && '.join(inside)})) continue;"] if inside else []),
            f"const int row = {row};",
        ]


def halo_writer(
    problem: Problem, found: GemmForm, parameters: Mapping[str, Parameter], name: str
) -> HaloWriter:
    """Raises Unsupported where this is no such convolution, or the schedule does not fit."""
    halo = halo_of(found)
    if halo is None:
        raise Unsupported("no convolution of an image that is contiguous along the results")
    box, tiles, parts = read_box(parameters, halo)
    kernel, region, device = problem.kernel, problem.region, problem.device
    return HaloWriter(kernel, found, region, tiles, name, device, halo, box, parts)
