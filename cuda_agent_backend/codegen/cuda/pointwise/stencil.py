"""Pointwise kernels whose results share taps: every thread makes a tile of ``rows`` by ``vector`` neighbouring results.

Elements that several results of the tile read are read once, in aligned words of up to 16 bytes, and picked from
registers. What is beside the image is decided per tile for the outer loops (one test, and a path without masks where
all taps are inside) and per element for the innermost one, where for most elements it is known beforehand: a vector
starts at a multiple of its width.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import sympy

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.access import (
    WORD_BYTES,
    Flat,
    LanePrinter,
    flat_body,
    local_reader,
    share_divisors,
)
from cuda_agent_backend.codegen.cuda.common.parts import local_types
from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.facts import AT_LEAST
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES, Printer, c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction, Value

Ranges = dict[sympy.Symbol, tuple[int, int]]
"""First and last value of loop variables."""
Kept = Callable[[str, str], str]
FEWEST_TAPS = 3
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


def bounds(expr: sympy.Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Least and greatest value of a linear expression; None for any other."""
    low = high = 0
    for term, factor in expr.as_coefficients_dict().items():
        if not factor.is_Integer or not (term == 1 or term in ranges):
            return None
        ends = [int(factor) * v for v in (ranges[term] if term != 1 else (1, 1))]
        low, high = low + min(ends), high + max(ends)
    return low, high


@dataclass
class _Word:
    """Neighbouring elements that are read together. ``sure``: something reads it whatever the masks say."""

    name: str
    buffer: str
    start: sympy.Expr
    unit: int
    used: set[int] = field(default_factory=set)
    sure: bool = False

    def lines(self, pointer: str, extent: int, ctype: str, ranges: Ranges) -> list[str]:
        size, first = 1, min(self.used)
        while first // size != max(self.used) // size:
            size *= 2
        first = first // size * size
        at = sympy.expand(self.start + first)
        ends = bounds(at, ranges)
        text = c_index(at)
        if not self.sure and (ends is None or ends[0] < 0 or ends[1] + size > extent):
            text = f"ca::imax(ca::imin({text}, {extent - size}), 0)"  # a mask hides what is read
        if size == 1:
            return [f"const {ctype} {self.name}e{first} = ca::widen({pointer}[{text}]);"]
        read = f"const auto {self.name} = ca::load<{size}>({pointer} + {text});"
        picked = [
            f"const {ctype} {self.name}e{n} = {self.name}.v[{n - first}];"
            for n in sorted(self.used)
        ]
        return [read, *picked]


@dataclass
class TilePrinter(LanePrinter):
    """Prints for ``width`` lanes from a multiple of ``width`` on; ``ranges`` say where in the loops that may be."""

    ranges: Ranges = field(default_factory=dict)
    extent_of: Callable[[str], int] = lambda b: 0
    conditions: list[sympy.Expr] = field(default_factory=list)
    """What comparisons want to be not negative."""
    _words: dict[tuple[str, sympy.Expr, int], _Word] = field(default_factory=dict)

    def reads(self) -> list[str]:
        """Statements that read what the printed ones use."""
        return [
            line
            for word in self._words.values()
            for line in word.lines(
                self.pointer(word.buffer),
                self.extent_of(word.buffer),
                COMPUTE_TYPES[self.dtype_of(word.buffer)],
                self.ranges,
            )
        ]

    def _masked(self, i: Instruction, prefix: str, mask: str | None) -> list[str]:
        """No branches: what windows share is read once."""
        return Printer._masked(self, i, prefix, mask)

    def _expression(self, i: Instruction, prefix: str, mask: str | None) -> str:
        if i.op in AT_LEAST:
            self._follow(i, prefix)
            a, b = (self.indices.get(self._operand(o, prefix)) for o in i.operands)
            if a is not None and b is not None:
                wanted = sympy.expand(AT_LEAST[i.op](a, b))
                if bounds(wanted, self.ranges) is not None:
                    return self._compared(wanted)
        return super()._expression(i, prefix, mask)

    def _compared(self, wanted: sympy.Expr) -> str:
        assert self.lane is not None
        self.conditions.append(wanted)
        factor = int(wanted.coeff(self.lane))
        lanes = [self._not_negative(wanted + factor * n, factor) for n in range(self.width)]
        if len(set(lanes)) == 1:
            return f"ca::splat<bool, L>({lanes[0]})"
        return f"ca::vec<bool, L>{{{{{', '.join(lanes)}}}}}"

    def _not_negative(self, wanted: sympy.Expr, factor: int) -> str:
        ends = bounds(wanted, self.ranges)
        assert ends is not None and self.lane is not None
        if ends[0] >= 0 or ends[1] < 0:
            return str(ends[0] >= 0).lower()
        if wanted.free_symbols == {self.lane}:
            # the same text for all that is the same at multiples of the width
            rest, each = int(wanted.as_coeff_Add()[0]), abs(factor) * self.width
            if factor > 0:
                return f"({self.lane} >= {ceildiv(-rest, each) * self.width})"
            return f"({self.lane} <= {rest // each * self.width})"
        return f"({c_index(wanted)} >= 0)"

    def _load(self, i: Instruction, mask: str | None) -> str:
        assert i.buffer is not None and i.index is not None and self.lane is not None
        step = coefficient(i.index, self.lane)
        if step is None:
            return super()._load(i, mask)
        ctype = COMPUTE_TYPES[self.dtype_of(i.buffer)]
        distance, rest = i.index.as_coeff_Add()
        unit = self._aligned_unit(i.buffer, rest)
        count = self.width if step else 1
        cells = [
            self._cell(i.buffer, rest, int(distance) + step * n, unit, mask is None)
            for n in range(count)
        ]
        if not step:
            return f"ca::splat<{ctype}, L>({cells[0]})"
        return f"ca::vec<{ctype}, L>{{{{{', '.join(cells)}}}}}"

    def _cell(self, buffer: str, rest: sympy.Expr, distance: int, unit: int, sure: bool) -> str:
        number, element = divmod(distance, unit)
        key = (buffer, rest, number)
        if key not in self._words:
            name = f"c{len(self._words)}"
            self._words[key] = _Word(name, buffer, rest + number * unit, unit)
        word = self._words[key]
        word.used.add(element)
        word.sure |= sure
        return f"{word.name}e{element}"

    def _aligned_unit(self, buffer: str, rest: sympy.Expr) -> int:
        """Elements of the widest words that start at ``rest``."""
        unit = WORD_BYTES // self.dtype_of(buffer).itemsize
        factors = [
            int(factor) * (self.width if term == self.lane else 1)
            for term, factor in rest.as_coefficients_dict().items()
        ]
        while unit > 1 and any(n % unit for n in (*factors, self.extent_of(buffer))):
            unit //= 2
        return unit


def by_rows(body: Body) -> Body:
    """``body`` with sums and extremes of plain taps joined row by row of the window: rows of several windows then are
    joined once."""
    makers = {i.result: i for i in body.instructions}
    uses: dict[Value, int] = {}
    for v in (*(o for i in body.walk() for o in i.operands if isinstance(o, Value)), *body.results):
        uses[v] = uses.get(v, 0) + 1
    fresh = itertools.count(1 + max((i.result.number for i in body.walk()), default=-1))
    gone: set[Value] = set()
    out: list[Instruction] = []
    for i in reversed(body.instructions):
        if i.result in gone:
            continue
        if i.op not in ("add", "maximum", "minimum"):
            out.append(i)
            continue
        terms, joins = _joined(i, makers, uses)
        taps = [tap for t in terms if (tap := _tap(makers.get(t), makers)) is not None]
        places = [tap.index.as_coeff_Add() for tap in taps if tap.index is not None]
        same = {tap.buffer for tap in taps} | {rest for _, rest in places}
        if len(terms) < 2 * FEWEST_TAPS or len(places) != len(terms) or len(same) != 2:
            out.append(i)
            continue
        gone |= joins
        ordered = sorted(zip((int(n) for n, _ in places), terms, strict=True), key=lambda t: t[0])
        out += reversed(_in_runs(i, ordered, fresh))
    return Body(out[::-1], body.results)


def _joined(
    root: Instruction, makers: dict[Value, Instruction], uses: dict[Value, int]
) -> tuple[list[Value], set[Value]]:
    """What a chain of one operation joins, and the operations of the chain but the last."""
    terms: list[Value] = []
    joins: set[Value] = set()
    waiting = [root]
    while waiting:
        for o in waiting.pop().operands:
            maker = makers.get(o)
            if maker is not None and maker.op == root.op and uses[o] == 1:
                waiting.append(maker)
                joins.add(o)
            else:
                terms.append(o)
    return terms, joins


def _tap(i: Instruction | None, makers: dict[Value, Instruction]) -> Instruction | None:
    """The one load that ``i`` is, masked or converted."""
    while i is not None and i.op != "load":
        if i.op == "masked" and i.body is not None:
            makers = {n.result: n for n in i.body.instructions}
            i = makers.get(i.body.results[0])
        elif i.op in ("to_dtype", "identity"):
            i = makers.get(i.operands[0])
        else:
            return None
    return i


def _in_runs(
    root: Instruction, ordered: list[tuple[int, Value]], fresh: Iterator[int]
) -> list[Instruction]:
    """Joins of ``ordered`` taps: first those at even distances, then the runs."""
    out: list[Instruction] = []

    def join(values: list[Value]) -> Value:
        first, *rest = values
        for v in rest:
            out.append(replace(root, result=Value(next(fresh)), operands=(first, v)))
            first = out[-1].result
        return first

    step = min(b - a for (a, _), (b, _) in itertools.pairwise(ordered))
    runs = [[ordered[0][1]]]
    for (before, _), (at, value) in itertools.pairwise(ordered):
        if at - before == step:
            runs[-1].append(value)
        else:
            runs.append([value])
    join([join(run) for run in runs])
    out[-1] = replace(out[-1], result=root.result)
    return out


def tile_body(
    kernel: Kernel,
    region: LoweredRegion,
    p: Pass,
    dims: Sequence[Dim],
    tile: tuple[int, int],
    index: str,
    kept: Kept | None = None,
) -> list[str]:
    """Statements that make the tile number ``at`` of ``rows`` by ``vector`` results; ``stream`` is for plain maps.

    kept: what becomes of results and the row that they are of, where they do not go to memory; the tile's ``first``.
    """
    rows, vector = tile
    loop = tile_loop(dims, p)
    assert loop is not None
    (row, height), (lane, width) = dims[loop], dims[-1]
    ranges: Ranges = {symbol: (0, size - 1) for symbol, size in dims}
    ranges[lane] = (0, width - vector)
    out, step = [], 1
    sizes = [*(n for _, n in dims[:-1]), width // vector]
    sizes[loop] = ceildiv(height, rows)
    names = ["first" if n == loop else str(s) for n, (s, _) in enumerate(dims)]
    for name, size in zip(reversed(names), reversed(sizes), strict=True):
        value = f"ca::idiv(at, {step})" if step > 1 else "at"
        if name != names[0]:
            value = f"ca::imod({value}, {size})"
        if name == str(lane):
            value = f"{value} * L"
        elif name == "first":
            value = f"{value} * {rows}"
            if height % rows:  # the last tile makes some results again
                value = f"ca::imin({value}, {height - rows})"
        out.append(f"const {index} {name} = {value};")
        step *= size
    one = functools.partial(_rows, kernel, region, p, row, lane, vector, kept)
    careful, conditions = one(ranges, 1)
    inside = _inside(conditions, ranges, lane)
    if inside is None:
        return [*out, *_looped(careful, row, rows, index)]
    low, high = inside[row]
    inside[row] = (low, high - (rows - 1))
    if inside[row][0] > inside[row][1]:
        return [*out, *_looped(careful, row, rows, index)]
    plain, _ = one(inside, rows)
    plain = [f"const {index} {row} = first;", *plain]
    full = {**ranges, row: (0, height - rows)}
    tests = []
    for symbol, (low, high) in inside.items():
        name = "first" if symbol == row else str(symbol)
        tests += [f"{name} >= {low}"] * (low > full[symbol][0])
        tests += [f"{name} <= {high}"] * (high < full[symbol][1])
    if not tests:
        return [*out, *plain]
    rest = indented(_looped(careful, row, rows, index))
    return [*out, f"if ({' && '.join(tests)}) {{", *indented(plain), "} else {", *rest, "}"]


def _looped(body: list[str], row: sympy.Symbol, rows: int, index: str) -> list[str]:
    """One row after the other."""
    return [
        "#pragma unroll 1",
        f"for (int k = 0; k < {rows}; ++k) {{",
        f"  const {index} {row} = first + k;",
        *indented(body),
        "}",
    ]


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


def _rows(
    kernel: Kernel,
    region: LoweredRegion,
    p: Pass,
    row: sympy.Symbol,
    lane: sympy.Symbol,
    vector: int,
    kept: Kept | None,
    ranges: Ranges,
    rows: int,
) -> tuple[list[str], list[sympy.Expr]]:
    """Statements for ``rows`` rows from ``row`` on, and the conditions they test."""
    types, buffers = local_types(kernel), region.buffers
    made: dict[str, str] = {}
    printer = TilePrinter(
        lane,
        lambda b: f"m_{b}",
        local_reader(made),
        lambda b: buffers[b].dtype,
        "",
        vector,
        ranges=ranges,
        extent_of=lambda b: buffers[b].extent,
    )
    out: list[str] = []
    bodies = [share_divisors(by_rows(stage.body), set()) for stage in p.stages]
    for n in range(rows):
        moved = Flat({row: row + n}, ())
        for number, stage in enumerate(p.stages):
            prefix = f"s{number}k{n}v"
            body: Body = flat_body(bodies[number], moved)
            out += printer.lines(body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
            out += [
                kept(value, f"({row} + {n})")
                if kept is not None
                else printer.store(s.buffer, moved.of(s.index), value)
                for s in stage.stores
            ]
            for s in stage.local_stores:
                made[s.buffer] = f"ca::to<{types[s.buffer]}>({value})"
    return [*printer.reads(), *out], printer.conditions
