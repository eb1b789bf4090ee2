"""Filter taps that none of a tile's columns has, as in strided transposed convolutions.

A sub-pixel phase of the stride has weights for some taps only. Columns of one phase lie next to each other
(`analysis.gemm.phases_first`), so a tile has few phases. Its block goes through the taps that one of them has, and
leaves out the terms of the others.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, gemm_of, points, straightened
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.loops import split_outer
from cuda_agent_backend.codegen.ir.ssa import Body, Value

MOST_TAPS = 16
"""As many as one 64-bit number lists, four bits each."""
MOST_TILES = 64
"""Tiles by columns whose taps are written into the kernel."""

WIDE_STORES = (8, 4, 2)
"""Neighbouring results that are worth a store of their own, for which phases with the same taps stay together."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "and_": operator.and_,
    "bitwise_and": operator.and_, "logical_and": operator.and_,
}  # fmt: skip


@dataclass(frozen=True)
class FilterTaps:
    """``dims``: the last loops of the terms; ``of_columns``: by column, numbers of the taps that it has weights for."""

    dims: tuple[Dim, ...]
    of_columns: tuple[frozenset[int], ...]

    @property
    def count(self) -> int:
        return points(self.dims)

    def of_tile(self, number: int, size: int) -> tuple[int, ...]:
        """Taps that some column of a tile has, in order."""
        return tuple(
            sorted(frozenset().union(*self.of_columns[number * size : (number + 1) * size]))
        )

    def of_tiles(self, size: int) -> list[tuple[int, ...]]:
        return [self.of_tile(n, size) for n in range(ceildiv(len(self.of_columns), size))]

    def alike(self, size: int) -> bool:
        """Whether each so many columns, one after the other, have the same taps."""
        starts = range(0, len(self.of_columns), size)
        return all(len(set(self.of_columns[at : at + size])) == 1 for at in starts)

    def share(self, size: int) -> float:
        """Of all terms, those that blocks with tiles of so many columns go through."""
        tiles = self.of_tiles(size)
        return sum(map(len, tiles)) / (len(tiles) * self.count)


def filter_taps_of(c: GemmForm) -> FilterTaps | None:
    """None where no column lacks a tap, or that cannot be told from here."""
    mask = c.right.mask
    if mask is None or not c.right.absent:
        return None
    dims = tuple(d for d in c.inner if d[0] in c.right.mask_symbols)
    phases = tuple(d for d in c.columns if d[0] in c.right.mask_symbols)
    known = {s for s, _ in (*dims, *phases)}
    last = c.inner[len(c.inner) - len(dims) :]
    if not phases or c.right.mask_symbols - known or last != dims:
        return None
    if points(dims) > MOST_TAPS or not is_known(mask):
        return None
    by_phase = {
        phase: frozenset(
            number
            for number, tap in enumerate(_points(dims))
            if holds(mask, dict(zip((s for s, _ in (*phases, *dims)), (*phase, *tap), strict=True)))
        )
        for phase in _points(phases)
    }
    if all(len(found) == points(dims) for found in by_phase.values()):
        return None
    places = [n for n, d in enumerate(c.columns) if d in phases]
    columns = (by_phase[tuple(column[n] for n in places)] for column in _points(c.columns))
    return FilterTaps(dims, tuple(columns))


def with_taps_apart(kernel: Kernel) -> tuple[Kernel, GemmForm | None]:
    """``kernel`` and its GEMM, after neighbouring phases with the same taps have become a loop of their own,
    and the loops of operands as well.

    Phases stay columns next to each other, for stores as wide as they are; other phases are other tiles then.
    """
    kernel = straightened(kernel)
    found = gemm_of(kernel)
    taps = None if found is None else filter_taps_of(found)
    if found is None or taps is None:
        return kernel, found
    symbol, size = found.columns[-1]
    if symbol not in found.right.mask_symbols or taps.alike(size):
        return kernel, found
    for part in WIDE_STORES:
        if part < size and size % part == 0 and taps.alike(part):
            apart = split_outer(kernel, symbol, part)
            return apart, gemm_of(apart)
    return kernel, found


def _points(dims: tuple[Dim, ...]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(n) for _, n in dims))


def is_known(mask: Body) -> bool:
    """Whether `holds` understands a mask."""
    return all(i.op in (*OPERATIONS, "index_expr") for i in mask.walk())


def holds(mask: Body, at: dict[sympy.Symbol, int]) -> bool:
    """Whether a mask of comparisons is true where its loops are at ``at``."""
    found: dict[Value, Any] = {}
    for i in mask.instructions:
        if i.index is not None:
            found[i.result] = int(i.index.xreplace({s: sympy.Integer(n) for s, n in at.items()}))
        else:
            found[i.result] = OPERATIONS[i.op](*(found[o] for o in i.operands))
    return bool(found[mask.results[0]])
