"""Which GEMMs with few columns each thread can add up in registers, and what becomes of their loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, points
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import OPERATIONS
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim

MOST_COLUMNS = 32
"""Results of a row that a thread makes."""
MOST_PHASES = 4
"""Points of a loop over neighbouring windows of the same image."""
FARTHEST = 2
"""Elements between what neighbouring lanes read."""
MAX_GRID = 65535
Point = dict[sympy.Symbol, int]


@dataclass(frozen=True)
class SkinnyLoops:
    """The loops by what becomes of them.

    lane: of a warp's lanes; tall: of a thread's rows, None if there is none; flat: all rows, lane last; grid: of
    blocks; columns, taps: written out, those of ``columns`` that the right factor lacks terms for first; loop: terms.
    """

    lane: Dim
    tall: Dim | None
    flat: tuple[Dim, ...]
    grid: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    taps: tuple[Dim, ...]
    loop: Dim | None

    @property
    def results(self) -> int:
        """Of a row."""
        return points(self.columns)

    @property
    def factors(self) -> tuple[Dim, ...]:
        """The order of the right factor's numbers in shared memory, for one term of the loop."""
        return (*self.columns[:-1], *self.taps, self.columns[-1])


def skinny_loops_of(found: GemmForm) -> SkinnyLoops | None:
    """None where the family does not fit: 16-bit or scaled operands, or places that are not evenly spaced."""
    if found.is_half or found.constant != 1:
        return None
    left, right = found.left, found.right
    steps = {s: coefficient(left.index, s) for s, _ in (*found.batch, *found.rows, *found.inner)}
    if None in steps.values() or None in [coefficient(right.index, s) for s in right.symbols]:
        return None
    lane = found.rows[-1]
    if (
        not 0 < abs(steps[lane[0]] or 0) <= FARTHEST
        or not has_known_mask(left)
        or not has_known_mask(right)
    ):
        return None
    free = [d for d in found.inner if d[0] not in left.mask_symbols | right.mask_symbols]
    loop = max(free, key=lambda d: d[1], default=None)
    taps = tuple(d for d in found.inner if d != loop)
    near = {abs(steps[s] or 0) for s, _ in found.rows}
    phases = tuple(d for d in found.batch if d[1] <= MOST_PHASES and abs(steps[d[0]] or 0) in near)
    grid = tuple(d for d in found.batch if d not in phases)
    own = (*phases, *found.columns)
    # what lacks taps first: the rest then lies together in shared memory
    columns = tuple(sorted(own, key=lambda d: d[0] not in right.mask_symbols))
    others = [d for d in found.rows if d != lane]
    reach = {abs(steps[s] or 0) for s, _ in taps}
    tall = max(others, key=lambda d: ((steps[d[0]] or 0) in reach, d[1] > 1), default=None)
    allowed = {s for s, _ in (*columns, *taps)}
    if right.mask_symbols - allowed or (right.mask is not None and not right.absent):
        return None
    if points(columns) > MOST_COLUMNS or points(grid) > MAX_GRID:
        return None
    return SkinnyLoops(lane, tall, (*others, lane), grid, columns, taps, loop)


def has_known_mask(factor: Factor) -> bool:
    """Whether its mask can be written out."""
    steps = factor.mask.walk() if factor.mask is not None else ()
    return all(i.op == "index_expr" or i.op in OPERATIONS for i in steps)


def points_in(dims: Sequence[Dim]) -> Iterator[Point]:
    """All points of these loops, the last loop fastest."""
    symbols = [s for s, _ in dims]
    for values in itertools.product(*(range(n) for _, n in dims)):
        yield dict(zip(symbols, values, strict=True))
