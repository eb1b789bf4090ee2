"""GEMMs whose columns are equal parts that are combined in the tile that a block computes, as a GLU does with halves.

A kernel that reads results of a GEMM at distances of a half, a third or a quarter of its columns (GLU, SwiGLU, the
gates of a recurrent cell) needs a few columns of each part at a time. The columns of the GEMM are numbered such that
those stand in one tile. Both kernels become one, and what is combined is never written to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, numbers_of, straightened
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import (
    Access,
    names_between,
    steps_of,
    stored_by,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import (
    InTile,
    in_one_pass,
    joined,
    of_windows,
    read_at,
    reader_of,
    same_loops,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel
from cuda_agent_backend.codegen.ir.loops import cut_loops
from cuda_agent_backend.codegen.ir.region import LoweredRegion

MOST_PARTS = 4
"""As many as a thread holds results of beside what it makes of them."""
CHUNKS = (8, 4, 2)
"""Columns of one part that stay next to each other, so that they are copied and stored together."""
COPY_BYTES = 16


@dataclass(frozen=True)
class GluMatch(InTile):
    """A product and what combines the parts of its columns.

    There a load of ``buffer`` is a read of a local, whose index is the number of a part.
    gemm: its ``parts`` is the loop over them, before that over a chunk of a part's columns.
    """


def match_glu(region: LoweredRegion, kernels: tuple[Kernel, ...], number: int) -> GluMatch:
    """How the parts of kernel ``number``'s results are combined in its tiles.

    Raises:
        Unsupported: it is no GEMM, or its results are not only combined by parts, with the reason.
    """
    product = straightened(kernels[number])
    if numbers_of(product) is None:
        raise Unsupported("no sum of products")
    buffer, stored = stored_by(product)
    reading = reader_of(region, kernels, number, buffer)
    gate = in_one_pass(kernels[reading])
    offsets, _ = read_at(gate, buffer)
    product, parts = _by_parts(product, _cut(offsets, stored))
    product, gate, names = same_loops(product, gate, (parts,), buffer)
    gemm = _with_parts(product, parts)
    last = _own(gemm.columns, parts)[-1]
    chunk = chunk_of(last, gemm)
    if chunk > 1:
        (theirs,) = (s for s, name in names.items() if name == last[0])
        sizes = (last[1] // chunk, chunk)
        product, gate = cut_loops(product, {last[0]: sizes}), cut_loops(gate, {theirs: sizes})
        names = names_between(of_windows(product, (parts,)), read_at(gate, buffer)[1])
        gemm = _with_parts(product, parts)
    gemm = _numbered_by_parts(gemm, parts, chunk)
    one = joined(product, gate, names, buffer, offsets)
    found = [one if n == number else kernel for n, kernel in enumerate(kernels) if n != reading]
    return GluMatch(region, tuple(found), number, buffer, gemm)


def _cut(offsets: Sequence[int], stored: Access) -> tuple[sympy.Symbol, tuple[int, int]]:
    """The product's loop whose equal parts lie at such distances, and how many there are of which size."""
    count, distance = len(offsets), offsets[1]
    steps = steps_of(stored)
    if count > MOST_PARTS or list(offsets) != [n * distance for n in range(count)]:
        raise Unsupported("results that are not read by a few equal parts")
    for symbol, size in stored[1]:
        if steps[symbol] * size == count * distance and size % count == 0 and size > count:
            return symbol, (count, size // count)
    raise Unsupported("parts that are not equal ones of a product's loop")


def _by_parts(product: Kernel, cut: tuple[sympy.Symbol, tuple[int, int]]) -> tuple[Kernel, Dim]:
    """``product`` with a loop over parts, and that loop."""
    symbol, sizes = cut
    place = [s for s, _ in product.outer].index(symbol)
    made = cut_loops(product, {symbol: sizes})
    return made, made.outer[place]


def _with_parts(product: Kernel, parts: Dim) -> GemmForm:
    """The GEMM, whose columns have the loop over parts."""
    c = numbers_of(product)
    if c is None or c.left.absent or c.right.absent:
        raise Unsupported("no sum of products, or one that lacks terms")
    if parts in c.rows:
        c = replace(c, left=c.right, right=c.left, rows=c.columns, columns=c.rows)
    if parts not in c.columns or len(c.columns) == 1:
        raise Unsupported("parts that are not of the product's columns alone")
    return c


def _own(columns: Sequence[Dim], parts: Dim) -> tuple[Dim, ...]:
    return tuple(d for d in columns if d != parts)


def chunk_of(last: Dim, c: GemmForm) -> int:
    """Columns of a part that stay next to each other: as many as are copied at a time."""
    possible = (n for n in CHUNKS if n <= COPY_BYTES // c.dtype.itemsize and last[1] % n == 0)
    return next(possible, 1)


def _numbered_by_parts(c: GemmForm, parts: Dim, chunk: int) -> GemmForm:
    """Columns with the parts of what belongs together near each other."""
    own = _own(c.columns, parts)
    before = own if chunk == 1 else own[:-1]
    if chunk > 1 and own[-1][1] != chunk:
        raise Unsupported("columns whose neighbours are not stored next to each other")
    return replace(c, columns=(*before, parts, *own[len(before) :]), parts=(parts,))
