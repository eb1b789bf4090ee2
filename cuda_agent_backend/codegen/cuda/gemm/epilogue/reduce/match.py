"""GEMMs whose results are reduced in the tile that a block computes: only what each tile comes to goes through memory.

`match_reduction` finds the kernels that reduce a GEMM's results over its rows or columns, or over both, as losses
over all pairs of two sets do. Given the size of a tile, `ReduceMatch.in_tiles` makes all of these kernels anew. The
GEMM ends in reductions over the loops within a tile. Each other kernel is a row kernel that joins the tiles' results.
Sums of exponentials below their row's maximum are relative to the tile's maximum first, and rescaled when joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, numbers_of, points, straightened
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import (
    Access,
    Names,
    cut_at,
    ends_of,
    names_of,
    stored_by,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.directions import Direction
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.gather import (
    GATHERED,
    Pick,
    picks_in,
    places_read,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Nests, RowStage
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import GATHER

COMBINED = ("sum", "max", "min", "welford")
LEAST_GROUP = 64
"""Results that are reduced to one, of neighbours in a product's rows or columns that are not: each such group begins a
tile of its own."""
ANY_SHAPE = (64, 64)
"""Of a tile, where it is enough to know whether its reductions can be joined."""


@dataclass(frozen=True)
class ReduceMatch:
    """Kernel ``number`` makes ``buffer``, the results of ``gemm``, which are reduced over rows, columns or both;
    groups of them that are not reduced to one are batches.

    directions: the first is that in whose lines results lie in a tile. kept: whether the results are written all the
    same, as something else needs them.
    """

    region: LoweredRegion
    kernels: tuple[Kernel, ...]
    number: int
    buffer: str
    gemm: GemmForm
    kept: bool
    directions: tuple[Direction, ...]

    @property
    def grouped(self) -> bool:
        """Whether groups of rows or columns begin tiles of their own."""
        whole = numbers_of(self.kernels[self.number])
        return whole is not None and whole.batches < self.gemm.batches

    def in_tiles(self, shape: tuple[int, int]) -> Nests:
        """Region and kernels where a tile has so many rows and columns."""
        region, kernels = self.region, self._at_hand()
        for one in self.directions:
            region, kernels = one.in_tiles(region, kernels, self.number, one.width(shape))
        return region, kernels

    def _at_hand(self) -> tuple[Kernel, ...]:
        """The kernels, of which the product's has its results at hand for stages to come."""
        product = self.kernels[self.number]
        *before, last = product.stages
        stores = last.stores if self.kept else ()
        last = replace(last, stores=stores, local_stores=(Store(self.buffer, sympy.S.Zero),))
        found = list(self.kernels)
        found[self.number] = replace(product, stages=(*before, last))
        return tuple(found)


def match_reduction(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> ReduceMatch:
    """How the results of kernel ``number`` are reduced in its tiles: for all kernels that reduce them, or the first.

    Raises:
        Unsupported: it is no GEMM, or its results are not only reduced, with the reason.
    """
    product = straightened(kernels[number])
    if numbers_of(product) is None:
        raise Unsupported("no sum of products")
    buffer, _ = stored_by(product)
    readers, others = _readers(kernels, number, buffer)
    if len(readers) > 1 and not _is_kept(region, kernels, buffer, others):
        try:
            found = _reducing(region, kernels, number, readers, others)
            found.in_tiles(ANY_SHAPE)
            return found
        except Unsupported:
            pass
    return _reducing(region, kernels, number, readers[:1], [*readers[1:], *others])


def _reducing(
    region: LoweredRegion,
    kernels: tuple[Kernel, ...],
    number: int,
    readers: Sequence[int],
    others: Sequence[int],
) -> ReduceMatch:
    """``readers``: kernels whose reductions are done in tiles; ``others`` read single results, or what is written."""
    product = straightened(kernels[number])
    buffer, stored = stored_by(product)
    kept = _is_kept(region, kernels, buffer, others)
    found = list(kernels)
    found[number] = product
    readers_and_picks = readers if kept else (*readers, *others)
    accesses = {n: _accesses(kernels[n], buffer) for n in readers_and_picks}
    ends = ends_of([stored, *(access for own in accesses.values() for access in own)])
    for n, own in {number: [stored], **accesses}.items():
        found[n] = cut_at(found[n], own, ends)
    changed = tuple(found)
    picks = [pick for n in accesses for pick in picks_in(n, changed[n], buffer)]
    directions = [_direction(changed, number, n, buffer) for n in readers]
    _check_order(kernels, number, [s for n in readers for s in _loading(kernels[n], buffer)], picks)
    directions = _with_picks(directions, changed, number, picks)
    first = directions[0].gemm
    if any(one.gemm != first for one in directions):
        raise Unsupported("groups of rows beside groups of columns")
    return ReduceMatch(region, changed, number, buffer, first, kept, tuple(directions))


def _is_kept(
    region: LoweredRegion, kernels: tuple[Kernel, ...], buffer: str, others: Sequence[int]
) -> bool:
    """Whether the results are needed in memory, of which ``others`` read more than the reductions do."""
    return buffer in region.outputs or any(_loading(kernels[n], buffer) for n in others)


def _direction(kernels: tuple[Kernel, ...], number: int, reader: int, buffer: str) -> Direction:
    """Of the reductions in one kernel, loops of both cut to be the same."""
    product, other = kernels[number], kernels[reader]
    names = {s.name: names_of(product, _read_at(other, s, buffer)) for s in _loading(other, buffer)}
    gemm, by_rows = _by_groups(product, _reduced(other, names))
    return Direction(buffer, gemm, by_rows, reader, names)


def _with_picks(
    directions: Sequence[Direction],
    kernels: tuple[Kernel, ...],
    number: int,
    picks: Sequence[Pick],
) -> list[Direction]:
    """Each single result with the first direction along whose lines it is picked."""
    lines = [[symbol for symbol, _ in one.along] for one in directions]
    found = list(directions)
    for pick in picks:
        names = names_of(kernels[number], pick.access(kernels[pick.kernel]))
        if [names[GATHERED]] not in lines:
            raise Unsupported("a result that is picked of more than a line, or of less")
        n = lines.index([names[GATHERED]])
        found[n] = replace(found[n], picks=(*found[n].picks, (pick, names)))
    return found


def matched_reductions(region: LoweredRegion, kernels: tuple[Kernel, ...]) -> list[ReduceMatch]:
    """The products that can be reduced in their tiles, each by itself."""
    found = []
    for number in range(len(kernels)):
        try:
            found.append(match_reduction(region, kernels, number))
        except Unsupported:
            continue
    return found


def _readers(kernels: tuple[Kernel, ...], number: int, buffer: str) -> tuple[list[int], list[int]]:
    """The kernels that only reduce the product, or else the first that reads it; then others that read it."""
    found = [
        n
        for n, kernel in enumerate(kernels)
        if any(i.buffer == buffer for s in kernel.stages for i in s.body.accesses())
    ]
    if not found or found[0] <= number:
        raise Unsupported("a product that nothing reads")
    reducing = [n for n in found if _only_reduces(kernels[n], buffer)] or found[:1]
    return reducing, [n for n in found if n not in reducing]


def _only_reduces(kernel: Kernel, buffer: str) -> bool:
    stages = _loading(kernel, buffer)
    return bool(stages) and all(s.kind == "reduce" and s.combine in COMBINED for s in stages)


def _loading(kernel: Kernel, buffer: str) -> list[RowStage]:
    """Stages that read the product otherwise than at places that data says."""
    return [s for s in kernel.stages if any(i.buffer == buffer for i in s.body.loads())]


def _check_order(
    kernels: tuple[Kernel, ...], number: int, reductions: Sequence[RowStage], picks: Sequence[Pick]
) -> None:
    """Raises Unsupported where tiles would need what is made after the product."""
    later = {s.buffer for k in kernels[number + 1 :] for stage in k.stages for s in stage.stores}
    needed = {i.buffer for s in reductions for i in s.body.accesses()}
    needed |= {buffer for pick in picks for buffer in places_read(pick)}
    if later & needed:
        raise Unsupported("a reduction that needs what is made after the product")


def _read_at(kernel: Kernel, stage: RowStage, buffer: str) -> Access:
    """Where a reduction reads the product. Raises Unsupported where it is something else."""
    if stage.kind != "reduce" or stage.combine not in COMBINED:
        raise Unsupported(f"a product that a {stage.combine or stage.kind} reads")
    places = {i.index for i in stage.body.loads() if i.buffer == buffer and i.index is not None}
    gathers = any(i.buffer == buffer and i.op == GATHER for i in stage.body.walk())
    if len(places) != 1 or gathers:
        raise Unsupported("a product that is read at several places")
    return places.pop(), (*kernel.outer, *stage.inner)


def _accesses(kernel: Kernel, buffer: str) -> list[Access]:
    """How a kernel reads the product."""
    loads = [_read_at(kernel, stage, buffer) for stage in _loading(kernel, buffer)]
    return [*loads, *(pick.access(kernel) for pick in picks_in(0, kernel, buffer))]


def _reduced(reader: Kernel, names: dict[str, Names]) -> frozenset[sympy.Symbol]:
    """The product's loops that all stages reduce over."""
    sets = {
        frozenset(names[s.name][symbol] for symbol, _ in s.inner)
        for s in reader.stages
        if s.name in names
    }
    if len(sets) != 1:
        raise Unsupported("reductions over different loops")
    return sets.pop()


def _by_groups(product: Kernel, reduced: frozenset[sympy.Symbol]) -> tuple[GemmForm, bool]:
    """The GEMM with all rows, or all columns, reduced to one: whichever has more that are."""
    c = numbers_of(product)
    if c is None or c.left.absent or c.right.absent:
        raise Unsupported("no sum of products, or one that lacks terms")
    by_rows = _count(c.rows, reduced) > _count(c.columns, reduced)
    dims = c.rows if by_rows else c.columns
    own = tuple(d for d in dims if d[0] in reduced)
    kept = tuple(d for d in dims if d[0] not in reduced)
    if not own or (kept and points(own) < LEAST_GROUP):
        raise Unsupported("few neighbours that are reduced to one")
    c = replace(c, batch=(*c.batch, *kept))
    return (replace(c, rows=own) if by_rows else replace(c, columns=own)), by_rows


def _count(dims: Sequence[Dim], reduced: frozenset[sympy.Symbol]) -> int:
    return points([d for d in dims if d[0] in reduced])
