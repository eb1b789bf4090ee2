"""Matrix products with a pointwise tail -> C++ for the cpu target.

Both operands are copied once into panels that a tile's loop reads front to back (A only where its rows are not evenly
spaced with adjacent terms); a tile is summed in registers, and the tail runs on it while it is in the first cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from cuda_agent_backend.codegen.cpu.gemm_match import Operand, Product
from cuda_agent_backend.codegen.cpu.params import ProductParams
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, Printer, c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import Instruction

PRELUDE = "cpu/gemm.h"
ROWS = (96, 192, 48)
TILE_ROWS = {16: 12}
"""Rows of a tile by vector width, as many as the registers hold; :data:`FEW_TILE_ROWS` elsewhere."""
FEW_TILE_ROWS = 6


@dataclass(frozen=True)
class Panels:
    """Where the copies of the operands go: names and elements of temporaries, None for an operand read in place."""

    left: str | None
    right: str
    left_elements: int
    right_elements: int

    def temporaries(self) -> list[tuple[str, int]]:
        left = [(self.left, self.left_elements)] if self.left else []
        return [*left, (self.right, self.right_elements)]


def tile_rows(width: int) -> int:
    return TILE_ROWS.get(width, FEW_TILE_ROWS)


def panels(product: Product, number: int, width: int) -> Panels:
    """The temporaries of the region's kernel ``number``."""
    in_place = product.left.inner_step == 1
    rows, columns = tile_rows(width), 2 * width
    return Panels(
        None if in_place else f"left_panels{number}",
        f"right_panels{number}",
        product.batches * _whole(product.m, rows) * product.k,
        product.batches * _whole(product.n, columns) * product.k,
    )


def _whole(size: int, part: int) -> int:
    return -(-size // part) * part


@dataclass
class ProductWriter:
    """Writes one kernel that begins with ``product``, inside a parallel region."""

    kernel: Kernel
    product: Product
    region: LoweredRegion
    panels: Panels
    params: ProductParams
    lines: list[str] = field(default_factory=list)

    def emit(self) -> list[str]:
        """The kernel's statements.

        Raises:
                Unsupported: columns in groups that vectors do not divide, or fewer rows at a time than a tile has.
        """
        p, span = self.product, 2 * self.params.width
        last = p.columns[-1][1]
        if len(p.columns) > 1 and last % self.params.width:
            raise Unsupported(
                f"columns in groups of {last} where vectors have {self.params.width} lanes"
            )
        add, high = self.lines.append, tile_rows(self.params.width)
        if self.params.rows < high:
            raise Unsupported(f"{self.params.rows} rows at a time where a tile has {high}")
        add(f"  {{  // {self.kernel.stages[0].name}: {p.batches} x {p.m} x {p.n}, sums of {p.k}")
        if self.panels.left:
            self._pack(self.panels.left, p.left, p.rows, high)
        self._pack(self.panels.right, p.right, p.columns, span)
        self._step()
        self._tiles(high, span)
        add("  }")
        return self.lines

    def _pack(self, to: str, operand: Operand, dims: Sequence[Dim], part: int) -> None:
        p = self.product
        size = math.prod(n for _, n in dims)
        count = -(-size // part)
        self.lines += [
            "    #pragma omp for schedule(static)",
            f"    for (int64_t piece = 0; piece < {p.batches * count}; ++piece) {{",
            f"      const int64_t at = piece % {count} * {part}, batch = piece / {count}; (void)batch;",
            *self._symbols(p.batch, "batch", "      "),
            *self._symbols(dims, "at", "      "),
            f"      const int64_t {p.inner[0]} = 0;",
            f"      ca::pack<{part}, {operand.step}, {operand.inner_step}>(",
            f"        {operand.buffer} + {c_index(operand.index)}, {p.k}, {size} - at, {to} + piece * {part * p.k});",
            "    }",
        ]

    def _symbols(self, dims: Sequence[Dim], flat: str, pad: str) -> list[str]:
        """The loop variables of ``dims`` from their row-major number."""
        out, below = [], 1
        for symbol, size in reversed(dims):
            part = flat if below == 1 else f"{flat} / {below}"
            part = part if symbol == dims[0][0] else f"{part} % {size}"
            out.append(f"{pad}const int64_t {symbol} = {part}; (void){symbol};")
            below *= size
        return out[::-1]

    def _step(self) -> None:
        """The tail of one vector of sums."""
        p = self.product
        lane = p.columns[-1][0]
        self.lines += [
            "    auto step = [&](auto width_, const float* sums, int64_t batch, int64_t row, int64_t column) "
            "__attribute__((always_inline)) {",
            "      constexpr int L = decltype(width_)::value; (void)L; (void)batch; (void)row;",
            *self._symbols(p.batch, "batch", "      "),
            *self._symbols(p.rows, "row", "      "),
            *self._symbols(p.columns, "column", "      "),
            *["      " + line for line in self._tail(lane)],
            "    };",
        ]

    def _tail(self, lane: sympy.Symbol) -> list[str]:
        forwarded: dict[str, str] = {}

        def local(i: Instruction) -> str:
            assert i.buffer is not None
            return forwarded[i.buffer]

        printer = Printer(lane, lambda b: b, local, lambda b: self.region.buffers[b].dtype, "")
        out = ["const auto total = ca::load<L>(sums);"]
        for number, stage in enumerate(self.kernel.stages):
            value = "total"
            if number:
                prefix = f"s{number}v"
                out += printer.lines(stage.body, prefix)
                value = f"{prefix}{stage.body.results[0].number}"
            out += [printer.store(s.buffer, s.index, value) for s in stage.stores]
            cast = f"ca::to<{COMPUTE_TYPES[stage.dtype]}>({value})"
            forwarded |= {s.buffer: cast for s in stage.local_stores}
        return out

    def _tiles(self, high: int, span: int) -> None:
        p, width = self.product, self.params.width
        column_panels, row_panels = -(-p.n // span), -(-p.m // high)
        if self.panels.left:
            a = f"{self.panels.left} + (batch * {row_panels} + row / {high}) * {high * p.k}"
            steps = f"1, {high}"
        else:
            a, steps = f"{p.left.buffer} + left_at(batch, row)", f"{p.left.step}, 1"
            self.lines += [
                "    auto left_at = [](int64_t batch, int64_t row) { (void)batch;",
                *self._symbols(p.batch, "batch", "      "),
                *self._symbols(p.rows, "row", "      "),
                f"      const int64_t {p.inner[0]} = 0; (void){p.inner[0]};",
                f"      return int64_t({c_index(p.left.index)});",
                "    };",
            ]
        self.lines += [
            f"    const ca::share mine = ca::product_share({p.batches}, {row_panels}, {column_panels});",
            "    for (int64_t batch = mine.batch; batch < mine.batch_end; ++batch)",
            f"    for (int64_t part = mine.tile; part < mine.tile_end; part += {self.params.rows // high})",
            "      for (int64_t panel = mine.panel; panel < mine.panel_end; ++panel) {",
            f"        const int64_t last = ca::imin(part + {self.params.rows // high}, mine.tile_end);",
            f"        const int64_t stop = ca::imin(last * {high}, {p.m});",
            f"        for (int64_t row = part * {high}; row < stop; row += {high}) {{",
            f"          alignas(64) float sums[{high * span}];",
            f"          const int64_t count = ca::imin({high}, stop - row);",
            f"          ca::product_rows<{high}, {width}, {steps}>(count, {a},",
            f"            {self.panels.right} + (batch * {column_panels} + panel) * {span * p.k}, {p.k}, sums);",
            f"          const int64_t columns = ca::imin({span}, {p.n} - panel * {span});",
            "          for (int64_t r = 0; r < count; ++r) {",
            "            int64_t c = 0;",
            f"            for (; c + {width} <= columns; c += {width})",
            f"              step(ca::lanes<{width}>{{}}, sums + r * {span} + c, batch, row + r, panel * {span} + c);",
            "            for (; c < columns; ++c)",
            f"              step(ca::lanes<1>{{}}, sums + r * {span} + c, batch, row + r, panel * {span} + c);",
            "          }",
            "        }",
            "      }",
            "    #pragma omp barrier",
        ]
