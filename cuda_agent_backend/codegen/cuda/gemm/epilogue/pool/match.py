"""GEMMs whose results are pooled in the tile that a block computes, so that they never go through memory.

A pooling by windows that do not overlap loads, for each of its results, the elements of one window at fixed distances
from each other. `match_pool` finds such loads in the loops as they are. What is made of the elements, a maximum,
a mean or anything else, stays as it is written. The rows of the GEMM are numbered such that those of a window follow
each other. Both kernels become one, whose last stages work on whole windows. Rows of no window are not computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import FACTORS, GemmForm, numbers_of, straightened
from cuda_agent_backend.codegen.analysis.passes import passes
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import (
    Access,
    Names,
    cut_at,
    ends_of,
    names_between,
    steps_of,
    stored_by,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.loops import cut_loops
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction
from cuda_agent_backend.codegen.transform.unroll import unrolled


@dataclass(frozen=True)
class InTile:
    """Kernel ``number`` of ``kernels`` is a product (``gemm``) with what follows, which reads ``buffer``."""

    region: LoweredRegion
    kernels: tuple[Kernel, ...]
    number: int
    buffer: str
    gemm: GemmForm

    @property
    def kernel(self) -> Kernel:
        """The product with what follows."""
        return self.kernels[self.number]


@dataclass(frozen=True)
class PoolMatch(InTile):
    """A product and the pooling behind it.

    There a load of ``buffer`` is a read of a local, whose index is the number of an element in its window.
    gemm: its ``window`` are the loops of a window, row-major.
    """


def match_pool(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> PoolMatch:
    """How the results of kernel ``number`` are pooled in its tiles.

    Raises:
        Unsupported: it is no GEMM, or its results are not only pooled, with the reason.
    """
    product = straightened(kernels[number])
    if numbers_of(product) is None:
        raise Unsupported("no sum of products")
    buffer, stored = stored_by(product)
    reading = reader_of(region, kernels, number, buffer)
    pool = in_one_pass(kernels[reading])
    offsets, _ = read_at(pool, buffer)
    product, window = _by_windows(product, _window(offsets, stored))
    product, pool, names = same_loops(product, pool, window, buffer)
    gemm = _numbered_by_windows(product, window)
    one = joined(product, pool, names, buffer, offsets)
    found = [one if n == number else kernel for n, kernel in enumerate(kernels) if n != reading]
    return PoolMatch(region, tuple(found), number, buffer, gemm)


def reader_of(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int, buffer: str) -> int:
    """The only kernel that reads the product. Raises Unsupported where something else needs it."""
    reading = [n for n, kernel in enumerate(kernels) if buffer in _read_by(kernel)]
    if buffer in region.outputs or len(reading) != 1:
        raise Unsupported("a product that more than one kernel needs")
    if region.buffers[buffer].dtype not in FACTORS:
        raise Unsupported("a product that is stored in another type than a factor's")
    (reader,) = reading
    between = kernels[number + 1 : reader]
    made = {s.buffer for kernel in between for stage in kernel.stages for s in stage.stores}
    if made & _read_by(kernels[reader]):
        raise Unsupported("a pooling that needs what is made after the product")
    return reader


def _read_by(kernel: Kernel) -> set[str]:
    return {i.buffer for s in kernel.stages for i in s.body.accesses() if i.buffer is not None}


def in_one_pass(kernel: Kernel) -> Kernel:
    """``kernel`` with all stages over the same loops, and reductions over a window written out."""
    kernel = unrolled(kernel)
    if kernel.is_map and not any(stage.inner for stage in kernel.stages):
        return kernel
    grouped = passes(kernel) if kernel.is_map else ()
    if len(grouped) != 1:
        raise Unsupported("a product that something else than a pointwise kernel reads")
    return replace(kernel, stages=grouped[0].stages)


def read_at(pool: Kernel, buffer: str) -> tuple[list[int], Access]:
    """Distances of a window's elements from its first, in rising order, and where the first lies."""
    reads = [(s, i) for s in pool.stages for i in s.body.accesses() if i.buffer == buffer]
    loads = [i for s in pool.stages for i in s.body.instructions if _loads(i, buffer)]
    if len(loads) < len(reads):
        raise Unsupported("a product that is read under a mask, or at places that data says")
    if any(stage.dtype not in FACTORS for stage, _ in reads):
        raise Unsupported("a pooling that gives no numbers of a factor's type, but places")
    places = [i.index.as_coeff_Add() for i in loads if i.index is not None]
    offsets = sorted({int(offset) for offset, _ in places})
    if len({rest for _, rest in places}) > 1 or len(offsets) == 1:
        raise Unsupported("a product that is not read by windows")
    return offsets, (places[0][1], (*pool.outer, *pool.stages[0].inner))


def _loads(i: Instruction, buffer: str) -> bool:
    return i.op == "load" and i.buffer == buffer


def _window(offsets: Sequence[int], stored: Access) -> dict[sympy.Symbol, int]:
    """Elements of a window along each of the product's loops that it has several of."""
    steps, sizes = steps_of(stored), dict(stored[1])
    places = []
    for rest in offsets:
        place = {}
        for symbol in sorted(steps, key=lambda s: -steps[s]):
            place[symbol], rest = divmod(rest, steps[symbol])
        if rest or any(place[s] >= sizes[s] for s in place):
            raise Unsupported("a window that lies across the product's loops")
        places.append(place)
    size = {symbol: 1 + max(place[symbol] for place in places) for symbol in steps}
    if math.prod(size.values()) != len(offsets):
        raise Unsupported("a window with elements left out")
    return {symbol: n for symbol, n in size.items() if n > 1}


def _by_windows(product: Kernel, sizes: dict[sympy.Symbol, int]) -> tuple[Kernel, tuple[Dim, ...]]:
    """``product`` with loops over windows, as many as are whole, and within one; the latter, outermost first."""
    whole = {s: (n // sizes[s], sizes[s]) for s, n in product.outer if s in sizes}
    parts = {s: own if own[0] > 1 else own[1:] for s, own in whole.items()}
    cut = cut_loops(product, parts)
    window, position = [], 0
    for symbol, _ in product.outer:
        position += len(parts.get(symbol, (1,)))
        if symbol in parts:
            window.append(cut.outer[position - 1])
    _, (index, _) = stored_by(cut)
    steps = steps_of((index, cut.outer))
    return cut, tuple(sorted(window, key=lambda dim: -steps[dim[0]]))


def same_loops(
    product: Kernel, pool: Kernel, window: Sequence[Dim], buffer: str
) -> tuple[Kernel, Kernel, Names]:
    """Both kernels with loops cut to be the same, and the product's by those of the pooling.

    Raises Unsupported where windows overlap, or leave results out.
    """
    stored, (_, read) = of_windows(product, window), read_at(pool, buffer)
    ends = ends_of([stored, read])
    product, pool = cut_at(product, [stored], ends), cut_at(pool, [read], ends)
    _, read = read_at(pool, buffer)
    return product, pool, names_between(of_windows(product, window), read)


def of_windows(product: Kernel, window: Sequence[Dim]) -> Access:
    """Where the first results of windows are stored."""
    _, (index, loops) = stored_by(product)
    within: dict[sympy.Symbol, sympy.Expr] = {symbol: sympy.S.Zero for symbol, _ in window}
    return index.xreplace(within), tuple(d for d in loops if d[0] not in within)


def _numbered_by_windows(product: Kernel, window: tuple[Dim, ...]) -> GemmForm:
    """The GEMM with the rows of a window next to each other."""
    c = numbers_of(product)
    if c is None or c.left.absent or c.right.absent or c.constant != 1:
        raise Unsupported("no sum of products, or one that lacks terms")
    kept = tuple(d for d in c.rows if d not in window)
    if not kept or len(kept) + len(window) != len(c.rows):
        raise Unsupported("windows that are not of the product's rows, or of all of them")
    return replace(c, rows=(*kept, *window), window=window)


def joined(
    product: Kernel, pool: Kernel, names: Names, buffer: str, offsets: Sequence[int]
) -> Kernel:
    """Both kernels as one, whose results before the pooling stay on the chip."""
    *before, last = product.stages
    last = replace(last, stores=(), local_stores=(Store(buffer, sympy.S.Zero),))
    members = {offset: number for number, offset in enumerate(offsets)}
    own = [_in_tile(stage, names, buffer, members) for stage in pool.stages]
    locals_ = {**product.locals, **pool.locals, buffer: Local(buffer, len(offsets))}
    return Kernel(product.outer, (*before, last, *own), locals_)


def _in_tile(stage: RowStage, names: Names, buffer: str, members: dict[int, int]) -> RowStage:
    """A stage of the pooling at one point of its loops, in the product's symbols."""

    def one(i: Instruction) -> Instruction:
        if not _loads(i, buffer) or i.index is None:
            return i
        offset, _ = i.index.as_coeff_Add()
        return replace(i, op="local", index=sympy.Integer(members[int(offset)]))

    body = Body([one(i) for i in stage.body.instructions], stage.body.results)
    change: dict[sympy.Symbol, sympy.Expr] = dict(names)
    return replace(
        stage,
        inner=(),
        body=body.substitute(change),
        stores=tuple(replace(s, index=s.index.xreplace(change)) for s in stage.stores),
        local_stores=tuple(replace(s, index=sympy.S.Zero) for s in stage.local_stores),
    )
