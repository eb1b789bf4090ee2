"""Reductions of a GEMM's results over its rows or columns: what a tile makes of them, and what joins the tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, points
from cuda_agent_backend.codegen.cuda.common.parts import (
    PARTIAL_TYPES,
    Accumulator,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import Names
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.gather import Pick
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.stages import (
    in_tile,
    joining,
)
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.ir.device import ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient, row_major
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Nests, RowStage
from cuda_agent_backend.codegen.ir.loops import merge_inner
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.region import Buffer, LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body
from cuda_agent_backend.codegen.ir.value_types import stage_dtype

TILE = sympy.Symbol("tile", integer=True, nonnegative=True)
"""Number of a tile along what is reduced."""


@dataclass(frozen=True)
class Direction:
    """Kernel ``reader`` reduces ``buffer``, the results of ``gemm``, over its rows (``by_rows``) or columns.

    names: for each stage of the reader that reduces results, the product's loops as the stage knows them. picks: what
    other kernels want of single results of a line, with the same for their stages.
    """

    buffer: str
    gemm: GemmForm
    by_rows: bool
    reader: int
    names: dict[str, Names]
    picks: tuple[tuple[Pick, Names], ...] = ()

    @property
    def along(self) -> tuple[Dim, ...]:
        """The loops that are reduced in tiles."""
        c = self.gemm
        return c.rows if self.by_rows else c.columns

    @property
    def extent(self) -> int:
        """Results that are reduced to one within the tiles of a line."""
        return points(self.along)

    @property
    def stages(self) -> set[str]:
        """Names of the stages that a tile has for it."""
        return {*self.names, *(self._picked(pick) for pick, _ in self.picks)}

    def width(self, shape: tuple[int, int]) -> int:
        """Results of a line in a tile of so many rows and columns."""
        return shape[0] if self.by_rows else shape[1]

    def in_tiles(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, width: int
    ) -> Nests:
        """Region and kernels, of which ``number`` has the results at hand, where a tile has ``width`` of a line."""
        reader = kernels[self.reader]
        tiles = ceildiv(self.extent, width)
        index, count = self._place(tiles)
        own: dict[str, RowStage] = {}
        joined: list[RowStage] = []
        locals_ = dict(reader.locals)
        for stage in reader.stages:
            if stage.name not in self.names:
                joined.append(stage)
                continue
            own[stage.name] = self._in_tile(stage, index, own, reader)
            stages, added = joining(stage, own, *self._parts(stage, index, tiles))
            joined += [merge_inner(s) for s in stages]
            locals_ |= added
        join = replace(reader, stages=tuple(joined), locals=locals_)
        region = _with_parts(region, list(own.values()), count)
        return self._with_picks(region, self._replaced(kernels, number, own, join), number)

    def _with_picks(self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> Nests:
        found, buffers = list(kernels), dict(region.buffers)
        index, count = _numbered(self._lines)
        for pick, names in self.picks:
            buffer = self._picked(pick)
            buffers[buffer] = Buffer(buffer, "temporary", torch.float32, (count,), (1,))
            product = found[number]
            made = pick.in_tile(names, buffer, index)
            found[number] = replace(product, stages=(*product.stages, made))
            theirs = index.xreplace({p: own for own, p in names.items()})
            found[pick.kernel] = pick.loaded(found[pick.kernel], buffer, theirs)
        return replace(region, buffers=buffers), tuple(found)

    def _picked(self, pick: Pick) -> str:
        return f"{self.buffer}_{pick.stage.name}_pick"

    def _parts(
        self, stage: RowStage, index: sympy.Expr, tiles: int
    ) -> tuple[tuple[Dim, ...], sympy.Expr]:
        """The loops over what tiles came to for a stage, and where each part lies."""
        names = self.names[stage.name]
        fresh = sympy.Symbol(f"{stage.name}_tile", integer=True, nonnegative=True)
        place = index.xreplace({**{p: r for r, p in names.items()}, TILE: fresh})
        kept = tuple(d for d in stage.inner if names[d[0]] not in dict(self.along))
        return _by_step((*kept, (fresh, tiles)), place), place

    @property
    def _lines(self) -> tuple[Dim, ...]:
        """The loops that are not reduced in tiles."""
        c = self.gemm
        return (*c.batch, *(c.columns if self.by_rows else c.rows))

    def _place(self, tiles: int) -> tuple[sympy.Expr, int]:
        """Where a tile's part of a line's reduction lies, lines next to each other; and how many of them there are."""
        batches = len(self.gemm.batch)
        return _numbered((*self._lines[:batches], (TILE, tiles), *self._lines[batches:]))

    def _in_tile(
        self, stage: RowStage, index: sympy.Expr, own: Mapping[str, RowStage], reader: Kernel
    ) -> RowStage:
        """A stage's part in a tile, after ``own``. Raises Unsupported where that needs what no tile has."""
        body = _forwarded(stage.body.substitute(dict(self.names[stage.name])), self.buffer)
        made = in_tile(replace(stage, body=body), _makers(reader, own))
        stores = tuple(
            Store(f"{self.buffer}_{stage.name}_{member}", index, field)
            for field, (member, _) in enumerate(accumulator(made).fields)
        )
        at_hand = {self.buffer, *(s.buffer for before in own.values() for s in before.local_stores)}
        if not {i.buffer for i in made.body.walk() if i.op == "local"} <= at_hand:
            raise Unsupported("a reduction that needs a scalar that is not made in its tile")
        return replace(made, inner=(), stores=stores)

    def _replaced(
        self, kernels: tuple[Kernel, ...], number: int, own: Mapping[str, RowStage], join: Kernel
    ) -> tuple[Kernel, ...]:
        found, product = list(kernels), kernels[number]
        found[number] = replace(product, stages=(*product.stages, *own.values()))
        read = {i.buffer for s in join.stages for i in s.body.walk() if i.op == "local"}
        locals_ = {n: local for n, local in join.locals.items() if n in read}
        stages = (
            replace(s, local_stores=tuple(t for t in s.local_stores if t.buffer in read))
            for s in join.stages
        )
        found[self.reader] = replace(join, stages=tuple(stages), locals=locals_)
        return tuple(found)


def _makers(reader: Kernel, own: Mapping[str, RowStage]) -> dict[str, RowStage]:
    """What makes the reader's scalars, by name; reductions in tiles as they are in ``own``."""
    stages = (own.get(s.name, s) for s in reader.stages)
    return {store.buffer: s for s in stages for store in s.local_stores}


def _with_parts(region: LoweredRegion, own: Sequence[RowStage], count: int) -> LoweredRegion:
    """With memory for what the tiles come to."""
    added = {
        store.buffer: Buffer(store.buffer, "temporary", PARTIAL_TYPES[ctype], (count,), (1,))
        for stage in own
        for store, (_, ctype) in zip(stage.stores, accumulator(stage).fields, strict=True)
    }
    return replace(region, buffers={**region.buffers, **added})


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


def shape_of(tiles: Tiles) -> tuple[int, int]:
    """Rows and columns of a tile."""
    return tiles.tile_m, tiles.tile_n


def vector_of(direction: Direction) -> int:
    """Results of a line that a thread reads at a time."""
    size = direction.along[-1][1]
    return next(v for v in (4, 2, 1) if size % v == 0)
