"""The source from a tile's sums to what is stored: sums that are not finite made anew, scales, and the epilogue."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from cuda_agent_backend.codegen.analysis.gemm import Factor
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.facts import GemmFacts
from cuda_agent_backend.codegen.cuda.gemm.lines import no_local, tail_lines
from cuda_agent_backend.codegen.cuda.gemm.operands import Side


class ResultsWriter(GemmFacts):
    """Writes the lines from a block's sums to what is stored."""

    @property
    def _anew(self) -> bool:
        """Whether a sum that is not finite may be wrong. 16-bit factors are not split, but those that are not there
        are zeros to the tensor core, whose product with an infinity is none."""
        return not self.gemm.is_half or self.left.factor.absent or self.right.factor.absent

    def _exact(self) -> list[str]:
        """A sum anew, term by term: for those that are not finite, as infinities do not survive the tensor cores.

        And for those that are the largest number, which is what cutting off may make of an overflow.
        """
        c = self.gemm
        batch = bool(c.batch)
        beside = [] if self.bands is None else self.bands.beside(self.name, batch)
        if not self._anew:
            return beside
        sides = ((self.left, "a"), (self.right, "b"))
        present = [name for side, name in sides if side.factor.absent]
        x, y = (self._number(side, at) for side, at in ((self.left, "x"), (self.right, "y")))
        factors = [self._scale("a", c.left), self._scale("b", c.right)]
        return [
            "auto exact = [&](int m, int n) {",
            *indented(self._scale_lines("m", "n", None, 1)),
            "  float total = 0.f;",
            "#pragma unroll 1",
            f"  for (int k = 0; k < {c.k}; ++k) {{",
            "    bool a, b;",
            "    const auto* const x = find_a(m, k, a);",
            "    const auto* const y = find_b(n, k, b);",
            f"    if (!({' && '.join(present) or 'true'})) continue;",
            f"    total = fmaf(a ? {x}{factors[0]} : 0.f, b ? {y}{factors[1]} : 0.f, total);",
            "  }",
            "  return total;",
            "};",
            *beside,
        ]

    def store_tail(self) -> list[str]:
        """The tail on a block's tile of results."""
        return [*self._exact(), *self._each_result([self._summed_up, *self._tail()])]

    @property
    def _summed_up(self) -> str:
        """``total``: results at a place of the block's tile."""
        at = "n * stride + m" if self.output.by_rows else "m * stride + n"
        return f"auto total = ca::load<L>(memory + {at});"

    @property
    def stored_columns(self) -> int:
        """Of the part of the block's tile that is stored at a time."""
        return self.tiles.tile_n

    def _each_result(self, body: Sequence[str]) -> list[str]:
        """``body`` for each ``L`` results of a tile, the `i`-th in the tail's order, from `row` and `column` on."""
        v, rows, columns = self.output.vector, self.tiles.tile_m, self.stored_columns
        high, wide = (columns, rows) if self.output.by_rows else (rows, columns)
        slow, fast = f"i / {wide // v}", f"i % {wide // v} * {v}"
        if self.output.across:
            near = self.output.across // v
            slow, fast = (
                f"i / {near} % {high}",
                f"i / {near * high} * {near * v} + i % {near} * {v}",
            )
        m, n = (fast, slow) if self.output.by_rows else (slow, fast)
        body = [*self._numbered(m, n), *body]
        return [
            f"constexpr int L = {v};",
            f"for (int i = threadIdx.x - first_thread; i < {high * wide // v}; i += own_threads) {{",
            *indented(body),
            "}",
        ]

    def _numbered(self, m: str, n: str) -> list[str]:
        """``row`` and ``column`` of a result of the tile; those that there are none of are left out."""
        c, t = self.gemm, self.tiles
        inside = [f"m < {self.own_rows}"] if self.own_rows < t.tile_m else []
        inside += [f"row < {c.m}"] if c.m % self.own_rows else []
        inside += [f"n < {self.own_columns}"] if self.own_columns < t.tile_n else []
        inside += [f"column < {c.n}"] if c.n % self.own_columns else []
        return [
            f"const int m = {m}, n = {n}, row = row0 + m, column = column0 + n;",
            *([f"if (!({' && '.join(inside)})) continue;"] if inside else []),
        ]

    def _tail(self) -> list[str]:
        return [
            *self._repaired(),
            *tail_lines(self.kernel, self.gemm, self.region, self.output, self.index),
        ]

    def _repaired(self) -> list[str]:
        """Sums of ``total`` that are not what they seem."""
        step = ("row + i", "column") if self.output.by_rows else ("row", "column + i")
        exactly = [
            "#pragma unroll",
            "for (int i = 0; i < L; ++i)",
            f"  if (!(fabsf(total.v[i]) < 3.402823466e38f)) total.v[i] = exact({', '.join(step)});",
        ]
        unknown = [
            "#pragma unroll",
            "for (int i = 0; i < L; ++i)",
            f"  if (beside({', '.join(step)})) total.v[i] = NAN;",
        ]
        return [
            *self._scaled(),
            *(exactly if self._anew else []),
            *(unknown if self.bands is not None else []),
        ]

    def _number(self, side: Side, place: str) -> str:
        """What an operand's element stands for, before it is scaled."""
        if side.factor.is_quantized:
            return f"float(int(*{place}) - {side.factor.zero})"
        return f"ca::widen(*{place})"

    def _scale(self, name: str, factor: Factor) -> str:
        """The first result of `_scale_lines` as a factor behind an element."""
        if factor.scale is None:
            return ""
        return f" * {name}{factor.scale.results[0].number}.v[0]"

    def _scale_lines(
        self, row: str, column: str, lane: sympy.Symbol | None, width: int
    ) -> list[str]:
        """Values ``a<number>`` and ``b<number>``: what a row and a column are scaled by."""
        if not self._scales:
            return []
        c = self.gemm
        printer = LanePrinter(lane, lambda b: f"m_{b}", no_local, self._dtype, "", width)
        return [
            f"constexpr int L = {width};",
            *decompose(row, c.rows, self.index),
            *decompose(column, c.columns, self.index),
            *(printer.lines(c.left.scale, "a") if c.left.scale is not None else []),
            *(printer.lines(c.right.scale, "b") if c.right.scale is not None else []),
        ]

    def _scaled(self) -> list[str]:
        """Multiplies sums of ``total`` by what operands are scaled by: before what is not finite is found out, as an
        infinite scale makes nothing of terms that are 0, and a small one brings back what is too large without it."""
        if not self._scales:
            return []
        c, output = self.gemm, self.output
        lane = (c.rows if output.by_rows else c.columns)[-1][0]
        sides = (("a", c.left.scale), ("b", c.right.scale))
        names = [f"{name}{scale.results[0].number}" for name, scale in sides if scale is not None]
        return [
            "{",
            *indented(self._scale_lines("row", "column", lane, output.vector)),
            *(f"  total = ca::scale_sums(total, {name});" for name in names),
            "}",
        ]
