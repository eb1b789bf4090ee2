"""GEMMs whose rows are reduced and mapped (softmax, norms) in the tile that a block computes.

A softmax or a norm reduces a row and then reads it again. Where a tile has whole rows and nothing else reads the
GEMM's results, they stay in the tile. `match_rows` finds such a kernel behind a GEMM and makes one of both. A row
is all columns of the GEMM, or a part of them that follow each other, as a head of attention is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import (
    FACTORS,
    GemmForm,
    numbers_of,
    points,
    straightened,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import (
    Access,
    Names,
    cut_at,
    ends_of,
    names_of,
    stored_by,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import InTile
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient, row_major
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction

LONGEST = 256
"""Columns of the widest tile."""


@dataclass(frozen=True)
class RowMatch(InTile):
    """A product and what goes over its rows, in the place of both.

    gemm: its last columns are ``line``, the loops along a row. product: its own stages; it stores its results
    only where something else needs them. rows: the other stages, over what the product's loops leave, in its symbols;
    they load ``tile``, of which a row has its elements in order, in the place of ``buffer``.
    """

    line: tuple[Dim, ...]
    product: Kernel
    rows: Kernel

    @property
    def kept(self) -> bool:
        """Whether the product's results are written all the same."""
        return any(stage.stores for stage in self.product.stages)

    @property
    def tile(self) -> str:
        return tile_of(self.buffer)


def tile_of(buffer: str) -> str:
    """The name of a row of the results that a tile has of ``buffer``."""
    return f"{buffer}_tile"


def match_rows(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> RowMatch:
    """The product that kernel ``number`` is, with the first kernel that reads its results.

    Raises:
        Unsupported: it is no GEMM, or that kernel does something else than go over rows, with the reason.
    """
    product = straightened(kernels[number])
    if numbers_of(product) is None:
        raise Unsupported("no sum of products")
    buffer, stored = stored_by(product)
    reader, kept = _reader(region, kernels, number, buffer)
    rows = kernels[reader]
    accesses = [_read_at(rows, stage, buffer) for stage in _loading(rows, buffer)]
    ends = ends_of([stored, *accesses])
    product, rows = cut_at(product, [stored], ends), cut_at(rows, accesses, ends)
    gemm = _numbers(product)
    rows, line = _in_loops_of(product, rows, buffer)
    others = tuple(d for d in gemm.columns if d not in line)
    if len(others) + len(line) != len(gemm.columns):
        raise Unsupported("rows along the product's rows")
    gemm = replace(gemm, columns=(*others, *line))
    _check(rows, line)
    *before, last = product.stages
    last = replace(
        last,
        stores=last.stores if kept else (),
        local_stores=(Store(buffer, sympy.S.Zero),),
    )
    own = replace(product, stages=(*before, last))
    joined = _joined(own, rows, buffer)
    found = [joined if n == number else k for n, k in enumerate(kernels) if n != reader]
    return RowMatch(region, tuple(found), number, buffer, gemm, line, own, rows)


def _numbers(product: Kernel) -> GemmForm:
    c = numbers_of(product)
    if c is None or c.left.absent or c.right.absent:
        raise Unsupported("no sum of products, or one that lacks terms")
    return c


def _reader(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, buffer: str
) -> tuple[int, bool]:
    """The first kernel that reads the product, and whether something else needs it as well."""
    reading = [n for n, kernel in enumerate(kernels) if buffer in _read_by(kernel)]
    if not reading or reading[0] <= number:
        raise Unsupported("a product that nothing reads")
    if region.buffers[buffer].dtype not in FACTORS:
        raise Unsupported("a product that is stored in another type than a factor's")
    reader = reading[0]
    between = kernels[number + 1 : reader]
    made = {s.buffer for kernel in between for stage in kernel.stages for s in stage.stores}
    if made & _read_by(kernels[reader]):
        raise Unsupported("rows that need what is made after the product")
    return reader, buffer in region.outputs or len(reading) > 1


def _read_by(kernel: Kernel) -> set[str]:
    return {i.buffer for s in kernel.stages for i in s.body.accesses() if i.buffer is not None}


def _loading(kernel: Kernel, buffer: str) -> list[RowStage]:
    return [s for s in kernel.stages if any(i.buffer == buffer for i in s.body.accesses())]


def _loads(i: Instruction, buffer: str) -> bool:
    return i.op == "load" and i.buffer == buffer


def _read_at(kernel: Kernel, stage: RowStage, buffer: str) -> Access:
    """Where a stage reads the product. Raises Unsupported where that is not one place."""
    reads = [i for i in stage.body.accesses() if i.buffer == buffer]
    loads = [i for i in stage.body.instructions if _loads(i, buffer)]
    places = {i.index for i in loads if i.index is not None}
    if len(loads) < len(reads) or len(places) != 1:
        raise Unsupported("a product that is read at several places, or under a mask")
    return places.pop(), (*kernel.outer, *stage.inner)


def _in_loops_of(product: Kernel, rows: Kernel, buffer: str) -> tuple[Kernel, tuple[Dim, ...]]:
    """``rows`` in the product's symbols, with loads of its results in order; the loops along a row."""
    names: dict[str, Names] = {
        s.name: names_of(product, _read_at(rows, s, buffer)) for s in _loading(rows, buffer)
    }
    found = list(names.values())
    outer = [{s: own[s] for s, _ in rows.outer} for own in found]
    lines = {
        tuple((names[s.name][d], n) for d, n in s.inner) for s in rows.stages if s.name in names
    }
    if len(lines) != 1 or any(one != outer[0] for one in outer):
        raise Unsupported("rows that are not read along the same loops")
    line = lines.pop()
    stages = [_renamed(n, s, outer[0], line) for n, s in enumerate(rows.stages)]
    stages = [_of_tile(s, buffer, line) for s in stages]
    dims = tuple((outer[0][s], n) for s, n in rows.outer)
    return Kernel(dims, tuple(stages), rows.locals), line


def _renamed(number: int, stage: RowStage, outer: Names, line: Sequence[Dim]) -> RowStage:
    """A stage with the rows' loops by their names in the product, and loops of its own by ``line``, or by new ones."""
    same = [n for _, n in stage.inner] == [n for _, n in line]
    inner = tuple(
        line[k] if same else (sympy.Symbol(f"own{number}_{k}", integer=True, nonnegative=True), n)
        for k, (_, n) in enumerate(stage.inner)
    )
    pairs = zip(stage.inner, inner, strict=True)
    change: dict[sympy.Symbol, sympy.Expr] = {**outer, **{s: to for (s, _), (to, _) in pairs}}

    def moved(stores: Sequence[Store]) -> tuple[Store, ...]:
        return tuple(replace(s, index=s.index.xreplace(change)) for s in stores)

    return replace(
        stage,
        inner=inner,
        body=stage.body.substitute(change),
        stores=moved(stage.stores),
        local_stores=moved(stage.local_stores),
    )


def _of_tile(stage: RowStage, buffer: str, line: Sequence[Dim]) -> RowStage:
    def one(i: Instruction) -> Instruction:
        return replace(i, buffer=tile_of(buffer), index=row_major(line)) if _loads(i, buffer) else i

    return replace(stage, body=Body([one(i) for i in stage.body.instructions], stage.body.results))


def _check(rows: Kernel, line: Sequence[Dim]) -> None:
    """Raises Unsupported where the tile is not the place for what is done with rows."""
    size = points(line)
    if not 1 < size <= LONGEST:
        raise Unsupported(f"rows of {size} results; at most {LONGEST}")
    if not all(s.kind in ("map", "reduce") for s in rows.stages):
        raise Unsupported("rows that are more than reduced and mapped")
    if not all(s.points == size for s in rows.stages if s.inner):
        raise Unsupported("rows with loops of another length")
    if not any(s.kind == "reduce" for s in rows.stages):
        raise Unsupported("rows that are not reduced")
    last = line[-1][0]
    steps = [
        coefficient(t.index, last)
        for s in rows.stages
        if s.inner
        for t in s.stores
        if s.kind == "map"
    ]
    if not steps or any(step != 1 for step in steps):
        raise Unsupported("rows that are only reduced, or stored across themselves")


def _joined(product: Kernel, rows: Kernel, buffer: str) -> Kernel:
    """Both kernels as one, whose rows read what stays on the chip."""

    def one(i: Instruction) -> Instruction:
        tile = _loads(i, tile_of(buffer))
        return replace(i, op="local", buffer=buffer, index=sympy.S.Zero) if tile else i

    stages = (
        replace(s, body=Body([one(i) for i in s.body.instructions], s.body.results))
        for s in rows.stages
    )
    locals_ = {**product.locals, **rows.locals, buffer: Local(buffer, 1)}
    return Kernel(product.outer, (*product.stages, *stages), locals_)
