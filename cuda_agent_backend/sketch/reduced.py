"""Sums of products whose results are reduced where they are made, so that only what tiles come to goes through memory.

`reducing_of` finds the kernel that reduces a product's results over loops of its rows or columns. Under a tile's size,
`Reducing.in_tiles` gives both kernels anew: the product's ends in reductions over the part of those loops that a tile
has, and the other joins what the tiles came to, a row kernel like any other. Sums of exponentials below their row's
maximum are below the tile's first, and scaled by what that lacks when they are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.sketch.contraction import (
    Contraction,
    contraction_of,
    cut_sizes,
    points,
    straightened,
)
from cuda_agent_backend.sketch.cuda_layout import ceildiv
from cuda_agent_backend.sketch.cuda_parts import PARTIAL_TYPES, Accumulator, stage_dtype
from cuda_agent_backend.sketch.lower import Buffer, LoweredRegion, Store
from cuda_agent_backend.sketch.nest import (
    Dim,
    Kernel,
    RowStage,
    coefficient,
    cut_loops,
    merge_inner,
)
from cuda_agent_backend.sketch.printer import COMPUTE_TYPES
from cuda_agent_backend.sketch.reduced_stages import in_tile, joining
from cuda_agent_backend.sketch.ssa import Body, Unsupported

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

    names: for each stage of the reader that reduces results, the product's loops as the stage knows them.
    """

    region: LoweredRegion
    kernels: tuple[Kernel, ...]
    number: int
    reader: int
    buffer: str
    contraction: Contraction
    by_rows: bool
    names: dict[str, dict[sympy.Symbol, sympy.Symbol]]

    @property
    def extent(self) -> int:
        """Results that are reduced to one within the tiles of a line."""
        return self.contraction.m if self.by_rows else self.contraction.n

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
            own[stage.name] = self._in_tile(stage, index)
            stages, added = joining(stage, own, *self._parts(stage, index, tiles))
            joined += [merge_inner(s) for s in stages]
            locals_ |= added
        join = replace(reader, stages=tuple(joined), locals=locals_)
        return self._region(list(own.values()), count), self._replaced(list(own.values()), join)

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

    def _place(self, tiles: int) -> tuple[sympy.Expr, int]:
        """Where a tile's part of a line's reduction lies, lines next to each other; and how many of them there are."""
        c = self.contraction
        dims = (*c.batch, (TILE, tiles), *(c.columns if self.by_rows else c.rows))
        place, step = sympy.S.Zero, 1
        for symbol, size in reversed(dims):
            place, step = place + symbol * step, step * size
        return sympy.expand(place), step

    def _in_tile(self, stage: RowStage, index: sympy.Expr) -> RowStage:
        made = in_tile(replace(stage, body=stage.body.substitute(dict(self.names[stage.name]))))
        stores = tuple(
            Store(f"{self.buffer}_{stage.name}_{member}", index, field)
            for field, (member, _) in enumerate(accumulator(made).fields)
        )
        return replace(made, inner=(), body=_forwarded(made.body, self.buffer), stores=stores)

    def _region(self, own: Sequence[RowStage], count: int) -> LoweredRegion:
        """With memory for what the tiles come to."""
        added = {
            store.buffer: Buffer(store.buffer, "temporary", PARTIAL_TYPES[ctype], (count,), (1,))
            for stage in own
            for store, (_, ctype) in zip(stage.stores, accumulator(stage).fields, strict=True)
        }
        return replace(self.region, buffers={**self.region.buffers, **added})

    def _replaced(self, own: list[RowStage], join: Kernel) -> tuple[Kernel, ...]:
        product = self.kernels[self.number]
        *before, last = product.stages
        last = replace(last, stores=(), local_stores=(Store(self.buffer, sympy.S.Zero),))
        found = list(self.kernels)
        found[self.number] = replace(product, stages=(*before, last, *own))
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
    buffer, index = _made(product, region)
    reader = _reader(kernels, number, buffer)
    other = kernels[reader]
    reads = {s.name: _read_at(s, buffer) for s in other.stages if _reads(s, buffer)}
    loops = {s.name: (*other.outer, *s.inner) for s in other.stages if s.name in reads}
    ends = _ends([(index, product.outer), *((reads[n], loops[n]) for n in reads)])
    product = _cut_at(product, {index: product.outer}, ends)
    other = _cut_at(other, {reads[n]: loops[n] for n in reads}, ends)
    names = {s.name: _names(other, s, product, buffer) for s in other.stages if s.name in reads}
    _check_order(kernels, number, reader)
    changed = list(kernels)
    changed[number], changed[reader] = product, other
    contraction, by_rows = _by_groups(product, _reduced(other, names))
    return Reducing(region, tuple(changed), number, reader, buffer, contraction, by_rows, names)


def _made(product: Kernel, region: LoweredRegion) -> tuple[str, sympy.Expr]:
    stores = [s for stage in product.stages for s in stage.stores]
    if len(stores) != 1 or not product.stages[-1].stores:
        raise Unsupported("a product with several results")
    if stores[0].buffer in region.outputs:
        raise Unsupported("a product that is wanted itself")
    return stores[0].buffer, stores[0].index


def _reader(kernels: tuple[Kernel, ...], number: int, buffer: str) -> int:
    readers = [n for n, k in enumerate(kernels) if any(_reads(s, buffer) for s in k.stages)]
    if len(readers) != 1 or readers[0] <= number:
        raise Unsupported("a product that several kernels read")
    return readers[0]


def _check_order(kernels: tuple[Kernel, ...], number: int, reader: int) -> None:
    """Raises Unsupported where the reader needs what is made after the product."""
    between = {
        s.buffer for k in kernels[number + 1 : reader] for stage in k.stages for s in stage.stores
    }
    if between & {i.buffer for s in kernels[reader].stages for i in s.body.accesses()}:
        raise Unsupported("a reduction that needs what is made after the product")


def _reads(stage: RowStage, buffer: str) -> bool:
    return any(i.buffer == buffer for i in stage.body.accesses())


def _read_at(stage: RowStage, buffer: str) -> sympy.Expr:
    """Where a reduction reads the product. Raises Unsupported where it is something else."""
    if stage.kind != "reduce" or stage.combine not in COMBINED:
        raise Unsupported(f"a product that a {stage.combine or stage.kind} reads")
    places = {i.index for i in stage.body.loads() if i.buffer == buffer}
    if len(places) != 1 or any(
        i.buffer == buffer and i.op != "load" for i in stage.body.accesses()
    ):
        raise Unsupported("a product that is read at several places")
    (place,) = places
    assert place is not None
    return place


def _steps(index: sympy.Expr, dims: Iterable[Dim]) -> dict[sympy.Symbol, int]:
    """Elements from one point of each loop to the next. Raises Unsupported where that is not constant."""
    found = {symbol: coefficient(index, symbol) or 0 for symbol, _ in dims}
    rest = sympy.expand(index - sum(step * symbol for symbol, step in found.items()))
    if rest != 0 or any(step <= 0 for step in found.values()):
        raise Unsupported("a product that is read in part, or more than once")
    return found


def _ends(accesses: Sequence[tuple[sympy.Expr, tuple[Dim, ...]]]) -> list[int]:
    """Distances at which some access has a loop begin or end."""
    ends = set()
    for index, dims in accesses:
        steps = _steps(index, dims)
        ends |= {end for s, n in dims for end in (steps[s], steps[s] * n)}
    return sorted(ends)


def _cut_at(
    kernel: Kernel, accesses: dict[sympy.Expr, tuple[Dim, ...]], ends: Sequence[int]
) -> Kernel:
    """``kernel`` with the loops of its accesses cut at ``ends``."""
    parts: dict[sympy.Symbol, tuple[int, ...]] = {}
    for index, dims in accesses.items():
        steps = _steps(index, dims)
        for symbol, size in dims:
            within = [e for e in ends if steps[symbol] < e < steps[symbol] * size]
            if any(e % steps[symbol] for e in within):
                raise Unsupported("a product that is read across its loops")
            cuts = [1, *(e // steps[symbol] for e in within), size]
            parts[symbol] = cut_sizes(cuts)
            if not parts[symbol]:
                raise Unsupported("a product that is read across its loops")
    return cut_loops(kernel, {s: sizes for s, sizes in parts.items() if len(sizes) > 1})


def _names(
    reader: Kernel, stage: RowStage, product: Kernel, buffer: str
) -> dict[sympy.Symbol, sympy.Symbol]:
    """The product's loops by those of a stage that reads it. Raises Unsupported where they differ."""
    dims = (*reader.outer, *stage.inner)
    steps = _steps(_read_at(stage, buffer), dims)
    (stored,) = (s.index for made in product.stages for s in made.stores)
    theirs = {
        (step, dict(product.outer)[s]): s for s, step in _steps(stored, product.outer).items()
    }
    found = {s: theirs.pop((steps[s], n), None) for s, n in dims}
    known = {s: name for s, name in found.items() if name is not None}
    if theirs or len(known) < len(found):
        raise Unsupported("a product that is read in part, or across its loops")
    return known


def _reduced(
    reader: Kernel, names: dict[str, dict[sympy.Symbol, sympy.Symbol]]
) -> frozenset[sympy.Symbol]:
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
