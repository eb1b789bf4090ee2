"""Sums of products whose results are reduced where they are made, so that only what tiles come to goes through memory.

`reducing_of` finds the kernel that reduces a product's results over loops of its rows or columns. Under a tile's size,
`Reducing.in_tiles` gives both kernels anew: the product's ends in reductions over the part of those loops that a tile
has, and the other joins what the tiles came to, a row kernel like any other. Sums of exponentials below their row's
maximum are below the tile's first, and scaled by what that lacks when they are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.sketch.contraction import Contraction, contraction_of, points, straightened
from cuda_agent_backend.sketch.cuda_layout import ceildiv
from cuda_agent_backend.sketch.cuda_parts import PARTIAL_TYPES, Accumulator, stage_dtype
from cuda_agent_backend.sketch.lower import Buffer, LoweredRegion, Store
from cuda_agent_backend.sketch.nest import (
    Dim,
    Kernel,
    RowStage,
    coefficient,
    merge_inner,
    row_major,
)
from cuda_agent_backend.sketch.printer import COMPUTE_TYPES
from cuda_agent_backend.sketch.reduced_loops import (
    Access,
    Names,
    cut_at,
    ends_of,
    names_of,
    stored_by,
)
from cuda_agent_backend.sketch.reduced_picks import GATHERED, Pick, picks_in, places_read
from cuda_agent_backend.sketch.reduced_stages import in_tile, joining
from cuda_agent_backend.sketch.ssa import GATHER, Body, Unsupported

COMBINED = ("sum", "max", "min", "welford")
LEAST_GROUP = 64
"""Results that are reduced to one, of neighbours in a product's rows or columns that are not: each such group begins a
tile of its own."""
TILE = sympy.Symbol("tile", integer=True, nonnegative=True)
"""Number of a tile along what is reduced."""


@dataclass(frozen=True)
class Reducing:
    """Kernel ``number`` makes ``buffer``, which kernel ``reader`` reduces over the rows (``by_rows``) or columns of
    ``contraction``; groups of them that are not reduced to one are batches.

    kept: whether the results are written all the same, as something else needs them.
    names: for each stage of the reader that reduces results, the product's loops as the stage knows them. picks: what
    other kernels want of single results, with the same for their stages.
    """

    region: LoweredRegion
    kernels: tuple[Kernel, ...]
    number: int
    reader: int
    buffer: str
    contraction: Contraction
    by_rows: bool
    kept: bool
    names: dict[str, Names]
    picks: tuple[tuple[Pick, Names], ...] = ()

    @property
    def extent(self) -> int:
        """Results that are reduced to one within the tiles of a line."""
        return self.contraction.m if self.by_rows else self.contraction.n

    @property
    def grouped(self) -> bool:
        """Whether groups of rows or columns begin tiles of their own."""
        whole = contraction_of(self.kernels[self.number])
        return whole is not None and whole.batches < self.contraction.batches

    def in_tiles(self, width: int) -> tuple[LoweredRegion, tuple[Kernel, ...]]:
        """Region and kernels where a tile has ``width`` of the results that are reduced to one."""
        reader = self.kernels[self.reader]
        tiles = ceildiv(self.extent, width)
        index, count = self._place(tiles)
        own: dict[str, RowStage] = {}
        joined: list[RowStage] = []
        locals_ = dict(reader.locals)
        for stage in reader.stages:
            if stage.name not in self.names:
                joined.append(stage)
                continue
            own[stage.name] = self._in_tile(stage, index, own)
            stages, added = joining(stage, own, *self._parts(stage, index, tiles))
            joined += [merge_inner(s) for s in stages]
            locals_ |= added
        join = replace(reader, stages=tuple(joined), locals=locals_)
        region, kernels = self._region(list(own.values()), count), self._replaced(own, join)
        return self._with_picks(region, kernels)

    def _with_picks(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...]
    ) -> tuple[LoweredRegion, tuple[Kernel, ...]]:
        found, buffers = list(kernels), dict(region.buffers)
        index, count = _numbered(self._lines)
        for pick, names in self.picks:
            buffer = f"{self.buffer}_{pick.stage.name}_pick"
            buffers[buffer] = Buffer(buffer, "temporary", torch.float32, (count,), (1,))
            product = found[self.number]
            made = pick.in_tile(names, buffer, index)
            found[self.number] = replace(product, stages=(*product.stages, made))
            theirs = index.xreplace({p: own for own, p in names.items()})
            found[pick.kernel] = pick.loaded(found[pick.kernel], buffer, theirs)
        return replace(region, buffers=buffers), tuple(found)

    def _parts(
        self, stage: RowStage, index: sympy.Expr, tiles: int
    ) -> tuple[tuple[Dim, ...], sympy.Expr]:
        """The loops over what tiles came to for a stage, and where each part lies."""
        names = self.names[stage.name]
        fresh = sympy.Symbol(f"{stage.name}_tile", integer=True, nonnegative=True)
        place = index.xreplace({**{p: r for r, p in names.items()}, TILE: fresh})
        kept = tuple(d for d in stage.inner if not self._within(names[d[0]]))
        return _by_step((*kept, (fresh, tiles)), place), place

    def _within(self, symbol: sympy.Symbol) -> bool:
        """Whether a loop of the product is reduced in tiles."""
        c = self.contraction
        return symbol in {s for s, _ in (c.rows if self.by_rows else c.columns)}

    @property
    def _lines(self) -> tuple[Dim, ...]:
        """The loops that are not reduced in tiles."""
        c = self.contraction
        return (*c.batch, *(c.columns if self.by_rows else c.rows))

    def _place(self, tiles: int) -> tuple[sympy.Expr, int]:
        """Where a tile's part of a line's reduction lies, lines next to each other; and how many of them there are."""
        batches = len(self.contraction.batch)
        return _numbered((*self._lines[:batches], (TILE, tiles), *self._lines[batches:]))

    def _in_tile(self, stage: RowStage, index: sympy.Expr, own: Mapping[str, RowStage]) -> RowStage:
        """A stage's part in a tile, after ``own``. Raises Unsupported where that needs what no tile has."""
        body = _forwarded(stage.body.substitute(dict(self.names[stage.name])), self.buffer)
        made = in_tile(replace(stage, body=body), self._makers(own))
        stores = tuple(
            Store(f"{self.buffer}_{stage.name}_{member}", index, field)
            for field, (member, _) in enumerate(accumulator(made).fields)
        )
        at_hand = {self.buffer, *(s.buffer for before in own.values() for s in before.local_stores)}
        if not {i.buffer for i in made.body.walk() if i.op == "local"} <= at_hand:
            raise Unsupported("a reduction that needs a scalar that is not made in its tile")
        return replace(made, inner=(), stores=stores)

    def _makers(self, own: Mapping[str, RowStage]) -> dict[str, RowStage]:
        """What makes the reader's scalars, by name; reductions in tiles as they are in ``own``."""
        stages = (own.get(s.name, s) for s in self.kernels[self.reader].stages)
        return {store.buffer: s for s in stages for store in s.local_stores}

    def _region(self, own: Sequence[RowStage], count: int) -> LoweredRegion:
        """With memory for what the tiles come to."""
        added = {
            store.buffer: Buffer(store.buffer, "temporary", PARTIAL_TYPES[ctype], (count,), (1,))
            for stage in own
            for store, (_, ctype) in zip(stage.stores, accumulator(stage).fields, strict=True)
        }
        return replace(self.region, buffers={**self.region.buffers, **added})

    def _replaced(self, own: Mapping[str, RowStage], join: Kernel) -> tuple[Kernel, ...]:
        product = self.kernels[self.number]
        *before, last = product.stages
        stores = last.stores if self.kept else ()
        last = replace(last, stores=stores, local_stores=(Store(self.buffer, sympy.S.Zero),))
        found = list(self.kernels)
        found[self.number] = replace(product, stages=(*before, last, *own.values()))
        read = {i.buffer for s in join.stages for i in s.body.walk() if i.op == "local"}
        locals_ = {n: local for n, local in join.locals.items() if n in read}
        stages = (
            replace(s, local_stores=tuple(t for t in s.local_stores if t.buffer in read))
            for s in join.stages
        )
        found[self.reader] = replace(join, stages=tuple(stages), locals=locals_)
        return tuple(found)


def accumulator(stage: RowStage) -> Accumulator:
    """What a stage's reduction is kept in on its way through a tile."""
    return Accumulator(stage.combine, COMPUTE_TYPES[stage_dtype(stage)])


def _numbered(dims: Sequence[Dim]) -> tuple[sympy.Expr, int]:
    """The number of a point of the loops in row-major order, and how many there are."""
    return row_major(dims), points(dims)


def _by_step(loops: tuple[Dim, ...], place: sympy.Expr) -> tuple[Dim, ...]:
    """Those whose neighbours are nearest in memory last."""
    return tuple(sorted(loops, key=lambda d: -(coefficient(place, d[0]) or 0)))


def _forwarded(body: Body, buffer: str) -> Body:
    """``body`` with loads of the product's results as reads of what the kernel has at hand."""
    return Body(
        [
            replace(i, op="local", index=sympy.S.Zero)
            if i.op == "load" and i.buffer == buffer
            else replace(i, body=None if i.body is None else _forwarded(i.body, buffer))
            for i in body.instructions
        ],
        body.results,
    )


# --- which kernel reduces what ---------------------------------------------------------------------------------------


def reducing_of(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> Reducing:
    """How the results of kernel ``number`` are reduced in its tiles.

    Raises:
        Unsupported: it is no sum of products, or its results are not only reduced, with the reason.
    """
    product = straightened(kernels[number])
    if contraction_of(product) is None:
        raise Unsupported("no sum of products")
    buffer, stored = stored_by(product)
    reader, *others = _readers(kernels, number, buffer)
    kept = buffer in region.outputs or any(_loading(kernels[n], buffer) for n in others)
    if kept:
        others = []
    accesses = {n: _accesses(kernels[n], buffer) for n in (reader, *others)}
    ends = ends_of([stored, *(access for own in accesses.values() for access in own)])
    changed = list(kernels)
    changed[number] = product = cut_at(product, [stored], ends)
    for n, own in accesses.items():
        changed[n] = cut_at(kernels[n], own, ends)
    other = changed[reader]
    names = {s.name: names_of(product, _read_at(other, s, buffer)) for s in _loading(other, buffer)}
    contraction, by_rows = _by_groups(product, _reduced(other, names))
    picks = [pick for n in accesses for pick in picks_in(n, changed[n], buffer)]
    _check_order(kernels, number, reader, picks)
    named = tuple((pick, names_of(product, pick.access(changed[pick.kernel]))) for pick in picks)
    along = contraction.rows if by_rows else contraction.columns
    if any([own[GATHERED]] != [s for s, _ in along] for _, own in named):
        raise Unsupported("a result that is picked of more than a line, or of less")
    found = tuple(changed)
    return Reducing(region, found, number, reader, buffer, contraction, by_rows, kept, names, named)


def reducings(region: LoweredRegion, kernels: tuple[Kernel, ...]) -> list[Reducing]:
    """The products that can be reduced in their tiles, each by itself."""
    found = []
    for number in range(len(kernels)):
        try:
            found.append(reducing_of(region, kernels, number))
        except Unsupported:
            continue
    return found


def _readers(kernels: tuple[Kernel, ...], number: int, buffer: str) -> list[int]:
    """The first kernel that only reduces the product, then others that read it."""
    found = [
        n
        for n, kernel in enumerate(kernels)
        if any(i.buffer == buffer for s in kernel.stages for i in s.body.accesses())
    ]
    if not found or found[0] <= number:
        raise Unsupported("a product that nothing reads")
    return sorted(found, key=lambda n: not _only_reduces(kernels[n], buffer))


def _only_reduces(kernel: Kernel, buffer: str) -> bool:
    stages = _loading(kernel, buffer)
    return bool(stages) and all(s.kind == "reduce" and s.combine in COMBINED for s in stages)


def _loading(kernel: Kernel, buffer: str) -> list[RowStage]:
    """Stages that read the product otherwise than at places that data says."""
    return [s for s in kernel.stages if any(i.buffer == buffer for i in s.body.loads())]


def _check_order(
    kernels: tuple[Kernel, ...], number: int, reader: int, picks: Sequence[Pick]
) -> None:
    """Raises Unsupported where tiles would need what is made after the product."""
    later = {s.buffer for k in kernels[number + 1 :] for stage in k.stages for s in stage.stores}
    needed = {i.buffer for s in kernels[reader].stages for i in s.body.accesses()}
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


def _by_groups(product: Kernel, reduced: frozenset[sympy.Symbol]) -> tuple[Contraction, bool]:
    """The sum of products with all rows, or all columns, reduced to one: whichever has more that are."""
    c = contraction_of(product)
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
