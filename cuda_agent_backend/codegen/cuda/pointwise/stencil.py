"""Pointwise kernels whose results share taps: every thread makes a tile of ``rows`` by ``vector`` neighbouring results.

Elements that several results of the tile read are read once, in aligned words of up to 16 bytes, and picked from
registers. What is beside the image is decided per tile for the outer loops (one test, and a path without masks where
all taps are inside) and per element for the innermost one, where for most elements it is known beforehand: a vector
starts at a multiple of its width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.body_rewrites import share_divisors
from cuda_agent_backend.codegen.cuda.common.flat_loops import Flat, flat_body
from cuda_agent_backend.codegen.cuda.common.lane_printer import local_reader
from cuda_agent_backend.codegen.cuda.common.parts import local_types
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.cuda.pointwise.tile_printer import Ranges, TilePrinter
from cuda_agent_backend.codegen.cuda.pointwise.window_rows import FEWEST_TAPS, join_taps_by_rows
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body

Kept = Callable[[str, str], str]
"""The statement that takes a result, given its value and its row."""
MOST_INSTRUCTIONS = 6000
"""Instructions of a tile up to which it is written out."""


def has_taps(p: Pass) -> bool:
    """Whether a result reads a buffer at several constant distances."""
    places: dict[tuple[str | None, sympy.Expr], set[sympy.Expr]] = {}
    lane = p.inner[-1][0] if p.inner else None
    for stage in p.stages:
        for i in stage.body.loads():
            if i.index is None or (lane is not None and coefficient(i.index, lane) is None):
                continue
            distance, rest = sympy.expand(i.index).as_coeff_Add()
            places.setdefault((i.buffer, rest), set()).add(distance)
    return any(len(distances) >= FEWEST_TAPS for distances in places.values())


def tile_loop(dims: Sequence[Dim], p: Pass) -> int | None:
    """The loop, but for the innermost, along which results have most in common: taps, or the places they read from."""
    if len(dims) < 2:
        return None
    if has_taps(p):
        return len(dims) - 2
    body = [i for stage in p.stages for i in stage.body.walk()]
    if not any(i.op == GATHER for i in body):
        return None
    told: set[sympy.Basic] = set()
    for i in body:
        if i.op in ("index_expr", "load") and i.index is not None:
            told |= i.index.free_symbols
    apart = [n for n, (symbol, _) in enumerate(dims[:-1]) if symbol not in told]
    return max(apart, key=lambda n: dims[n][1], default=None)


def tile_rows(dims: Sequence[Dim], p: Pass) -> list[int]:
    """Numbers of rows that a tile may have."""
    loop = tile_loop(dims, p)
    size = dims[loop][1] if loop is not None else 0
    work = sum(1 for stage in p.stages for _ in stage.body.walk())
    return [r for r in (1, 2, 4, 8) if r <= size and r * work <= MOST_INSTRUCTIONS]


def tile_body(
    kernel: Kernel,
    region: LoweredRegion,
    p: Pass,
    dims: Sequence[Dim],
    tile: tuple[int, int],
    index: str,
    kept: Kept | None = None,
) -> list[str]:
    """Statements that make the tile number ``at``: a thread's results, in some rows of a vector each.

    tile: rows, and elements of a vector. index: the type of an index. kept: what becomes of a result, given it and its
    row, where it does not go to memory. The first row of the tile is called ``first``.
    """
    return _TileWriter(kernel, region, p, tuple(dims), *tile, index, kept).lines()


@dataclass(frozen=True)
class _TileWriter:
    """Writes a tile of results. The arguments are those of `tile_body`."""

    kernel: Kernel
    region: LoweredRegion
    whole: Pass
    dims: tuple[Dim, ...]
    rows: int
    vector: int
    index: str
    kept: Kept | None

    @property
    def _loop(self) -> int:
        loop = tile_loop(self.dims, self.whole)
        assert loop is not None
        return loop

    @property
    def _row(self) -> Dim:
        return self.dims[self._loop]

    @property
    def _lane(self) -> Dim:
        return self.dims[-1]

    def lines(self) -> list[str]:
        """Where all taps of a tile are inside the image, all rows are written out without masks; else one by one."""
        (row, height), (lane, width) = self._row, self._lane
        ranges: Ranges = {symbol: (0, size - 1) for symbol, size in self.dims}
        ranges[lane] = (0, width - self.vector)
        out = self._places()
        careful, conditions = self._some_rows(ranges, 1)
        careful = self._looped(careful)
        inside = _inside(conditions, ranges, lane)
        if inside is None:
            return [*out, *careful]
        low, high = inside[row]
        inside[row] = (low, high - (self.rows - 1))
        if inside[row][0] > inside[row][1]:
            return [*out, *careful]
        plain, _ = self._some_rows(inside, self.rows)
        plain = [f"const {self.index} {row} = first;", *plain]
        tests = self._tests(inside, {**ranges, row: (0, height - self.rows)})
        if not tests:
            return [*out, *plain]
        both = [*indented(plain), "} else {", *indented(careful), "}"]
        return [*out, f"if ({' && '.join(tests)}) {{", *both]

    def _places(self) -> list[str]:
        """The loops' variables of the tile number ``at``; that of rows is ``first``, the tile's first row."""
        out, step = list[str](), 1
        (_, height), (lane, width) = self._row, self._lane
        sizes = [*(n for _, n in self.dims[:-1]), width // self.vector]
        sizes[self._loop] = ceildiv(height, self.rows)
        names = ["first" if n == self._loop else str(s) for n, (s, _) in enumerate(self.dims)]
        for name, size in zip(reversed(names), reversed(sizes), strict=True):
            value = f"ca::idiv(at, {step})" if step > 1 else "at"
            if name != names[0]:
                value = f"ca::imod({value}, {size})"
            if name == str(lane):
                value = f"{value} * L"
            elif name == "first":
                value = f"{value} * {self.rows}"
                if height % self.rows:  # the last tile makes some results again
                    value = f"ca::imin({value}, {height - self.rows})"
            out.append(f"const {self.index} {name} = {value};")
            step *= size
        return out

    def _tests(self, inside: Ranges, full: Ranges) -> list[str]:
        """Conditions for a tile to be ``inside``, those left out that all tiles of ``full`` meet."""
        tests: list[str] = []
        for symbol, (low, high) in inside.items():
            name = "first" if symbol == self._row[0] else str(symbol)
            tests += [f"{name} >= {low}"] * (low > full[symbol][0])
            tests += [f"{name} <= {high}"] * (high < full[symbol][1])
        return tests

    def _looped(self, body: list[str]) -> list[str]:
        """One row after the other."""
        return [
            "#pragma unroll 1",
            f"for (int k = 0; k < {self.rows}; ++k) {{",
            f"  const {self.index} {self._row[0]} = first + k;",
            *indented(body),
            "}",
        ]

    def _some_rows(self, ranges: Ranges, rows: int) -> tuple[list[str], list[sympy.Expr]]:
        """Statements for ``rows`` rows, and the conditions they test. ranges: where in the loops they may be."""
        types, buffers, row = local_types(self.kernel), self.region.buffers, self._row[0]
        made: dict[str, str] = {}
        printer = TilePrinter(
            self._lane[0],
            lambda b: f"m_{b}",
            local_reader(made),
            lambda b: buffers[b].dtype,
            "",
            self.vector,
            ranges=ranges,
            extent_of=lambda b: buffers[b].extent,
        )
        out: list[str] = []
        stages = self.whole.stages
        bodies = [share_divisors(join_taps_by_rows(stage.body), set()) for stage in stages]
        for n in range(rows):
            moved = Flat({row: row + n}, ())
            for number, stage in enumerate(stages):
                prefix = f"s{number}k{n}v"
                body: Body = flat_body(bodies[number], moved)
                out += printer.lines(body, prefix)
                value = f"{prefix}{stage.body.results[0].number}"
                out += [
                    self.kept(value, f"({row} + {n})")
                    if self.kept is not None
                    else printer.store(s.buffer, moved.of(s.index), value)
                    for s in stage.stores
                ]
                for s in stage.local_stores:
                    made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
        return [*printer.reads(), *out], printer.conditions


def _inside(conditions: list[sympy.Expr], ranges: Ranges, lane: sympy.Symbol) -> Ranges | None:
    """Where all conditions on one variable other than the lane hold; None if that is nowhere."""
    inside = dict(ranges)
    for wanted in conditions:
        symbols = wanted.free_symbols
        if len(symbols) != 1 or lane in symbols:
            continue
        (symbol,) = symbols
        factor, rest = int(wanted.coeff(symbol)), int(wanted.as_coeff_Add()[0])
        low, high = inside[symbol]
        if factor > 0:
            low = max(low, ceildiv(-rest, factor))
        else:
            high = min(high, rest // -factor)
        inside[symbol] = (low, high)
        if low > high:
            return None
    return inside
