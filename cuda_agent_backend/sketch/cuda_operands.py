"""How a sum of products reads its operands and stores its results on cuda: along which loop, how wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.sketch.contraction import Contraction, Factor, Lines, merged, points
from cuda_agent_backend.sketch.cuda_access import is_aligned
from cuda_agent_backend.sketch.nest import Dim, Kernel, coefficient


@dataclass(frozen=True)
class Side:
    """One operand as a block copies it: ``rows`` of a tile, along ``k`` or along the rows, ``vector`` at a time."""

    name: str
    factor: Factor
    rows: Lines
    inner: Lines
    along_k: bool
    vector: int

    @property
    def index(self) -> sympy.Expr:
        return self.rows.index


MAX_TAPS = 63
"""As many bits as a row's mask has, less one for terms that are not there."""


@dataclass(frozen=True)
class Gather:
    """An operand whose places are the row's ``base`` plus the term's ``offset``; ``taps``: what the mask sees of k."""

    base: sympy.Expr
    offset: sympy.Expr
    taps: tuple[Dim, ...]

    @property
    def bits(self) -> str:
        """The type of a row's mask."""
        return "unsigned" if points(self.taps) < 32 else "uint64_t"


def gather_of(side: Side) -> Gather | None:
    """For operands copied element by element along their rows, if row and term are independent."""
    if side.along_k or side.vector > 1:
        return None
    base = side.index.xreplace(dict.fromkeys((s for s, _ in side.inner.dims), sympy.S.Zero))
    offset = sympy.expand(side.index - base)
    taps = tuple(d for d in side.inner.dims if d[0] in side.factor.mask_symbols)
    mixed = offset.free_symbols - {s for s, _ in side.inner.dims}
    return None if mixed or points(taps) > MAX_TAPS else Gather(base, offset, taps)


def side_of(name: str, factor: Factor, rows: Sequence[Dim], inner: Sequence[Dim]) -> Side:
    """How to copy an operand: along the loop whose neighbours are nearest in memory, as wide as alignment allows."""
    lines = merged(rows, factor, f"{name}r")
    inner_lines = merged(inner, Factor(factor.buffer, lines.index, factor.mask), f"{name}k")
    lines = Lines(lines.dims, inner_lines.index)
    along_k = _nearness(inner_lines) <= _nearness(lines)
    chosen = inner_lines if along_k else lines
    return Side(name, factor, lines, inner_lines, along_k, _vector(factor, chosen))


def _nearness(lines: Lines) -> tuple[int, int]:
    """Sorts loops by how near in memory their neighbours are, and how many follow each other so."""
    return abs(lines.step or 1 << 40), -lines.dims[-1][1]


def _vector(factor: Factor, lines: Lines) -> int:
    symbol, size = lines.dims[-1]
    if symbol in factor.mask_symbols or lines.step != 1:
        return 1
    return next(
        (v for v in (4, 2) if size % v == 0 and is_aligned(lines.index, symbol, 1, v, v)), 1
    )


@dataclass(frozen=True)
class Output:
    """How results leave: along ``lane`` (rows or columns), ``vector`` at a time."""

    by_rows: bool
    vector: int


def output_of(kernel: Kernel, c: Contraction) -> Output:
    """Along the loop by which most stores are contiguous."""
    stores = [s.index for stage in kernel.stages for s in stage.stores]
    last_row, last_column = c.rows[-1], c.columns[-1]

    def near(dim: Dim) -> int:
        return sum(coefficient(index, dim[0]) == 1 for index in stores)

    by_rows = near(last_row) > near(last_column)
    symbol, size = last_row if by_rows else last_column
    for vector in (4, 2):
        aligned = all(
            coefficient(i, symbol) == 1 and is_aligned(i, symbol, 1, vector, vector) for i in stores
        )
        if size % vector == 0 and aligned:
            return Output(by_rows, vector)
    return Output(by_rows, 1)
