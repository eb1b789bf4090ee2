"""Operands that the copy engine of sm_90 (TMA) brings to shared memory, as boxes of a tensor of few dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, merged
from cuda_agent_backend.codegen.cuda.gemm.operands import Side
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim
from sandbox.plan.plan import TensorMap

LINE_BYTES, PIECE_BYTES = 128, 16
MOST_DIMENSIONS = 5
FAR = 2**31
"""Elements, from which on a plan takes no stride."""


@dataclass(frozen=True)
class TmaBoxes:
    """``batch``: the loops over batches that the operand depends on, in the order of the map's last dimensions."""

    map: TensorMap
    batch: tuple[sympy.Symbol, ...]


def in_batches(c: GemmForm) -> GemmForm:
    """The same with batches made of loops over rows and columns that are not one with the last of them in memory, as a
    pointwise convolution's images: of a box's dimensions one is rows, and one terms."""
    outer_rows, rows = _apart(c.rows, c.left)
    outer_columns, columns = _apart(c.columns, c.right)
    batch = (*c.batch, *outer_rows, *outer_columns)
    return replace(c, batch=batch, rows=rows, columns=columns)


def _apart(dims: tuple[Dim, ...], factor: Factor) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The outer loops, and those that are one in memory."""
    size = merged(dims, factor, "x").dims[-1][1]
    first = next(i for i in range(len(dims)) if math.prod(n for _, n in dims[i:]) <= size)
    return dims[:first], dims[first:]


def tma_boxes_of(side: Side, batch: Sequence[Dim], rows: int, depth: int, item: int) -> TmaBoxes:
    """The operand in boxes of ``rows`` by ``depth`` terms. Raises Unsupported where it is no such tensor."""
    if side.factor.mask is not None or len(side.rows.dims) != 1 or len(side.inner.dims) != 1:
        raise Unsupported(
            "boxes of an operand that is masked, or whose rows or terms are several loops"
        )
    (row, term), line = (side.rows.dims[0], side.inner.dims[0]), LINE_BYTES // item
    near, far = (term, row) if side.along_k else (row, term)
    steps = [(d, _step(side.index, d[0])) for d in (far, *batch)]
    dims = [(d, step) for d, step in steps if step or d is far]
    offset = sympy.expand(side.index - near[0] - sum(step * d[0] for d, step in dims))
    if not offset.is_Integer or len(dims) >= MOST_DIMENSIONS:
        raise Unsupported("boxes of an operand that is not contiguous, or of too many dimensions")
    strides = tuple(step for _, step in dims)
    if max(near[1], *strides) >= FAR:
        raise Unsupported("boxes of an operand with rows or batches too far apart")
    uneven = any(n * item % PIECE_BYTES for n in (*strides, int(offset)))
    if uneven or min(strides) <= 0 or offset < 0 or depth * item != LINE_BYTES:
        raise Unsupported("boxes whose lines do not begin at multiples of 16 bytes")
    box = (line, rows if side.along_k else depth, *[1] * (len(dims) - 1))
    shape = (near[1], *(d[1] for d, _ in dims))
    found = TensorMap(side.factor.buffer, shape, strides, box, int(offset))
    return TmaBoxes(found, tuple(d[0] for d, _ in dims[1:]))


def _step(index: sympy.Expr, symbol: sympy.Symbol) -> int:
    """Elements from one point of a loop to the next. Raises Unsupported where they differ."""
    step = coefficient(index, symbol)
    if step is None:
        raise Unsupported("boxes of an operand whose places are no sum of its loops")
    return step
