"""Whether the reads of a kernel stay within its rows, and where within the row they are.

Both are decided symbolically, never assumed: a buffer of which one read may leave its row cannot be local.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.ir.facts import not_negative
from cuda_agent_backend.codegen.ir.indices import (
    coefficient,
    never_negative,
)
from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.ssa import GATHER, Body, Instruction


@dataclass(frozen=True)
class RowArray:
    """Where a stage of this kernel stores a buffer: ``base`` over outer symbols, ``inner`` over inner ones."""

    base: sympy.Expr
    strides: tuple[tuple[int, int], ...]
    size: int

    @property
    def dense(self) -> bool:
        """Whether address order within the row is the row-major order of the stage's loops."""
        expected = 1
        for stride, size in reversed(self.strides):
            if stride != expected:
                return False
            expected *= size
        return True


def row_array(index: sympy.Expr, outer: Sequence[Dim], inner: Sequence[Dim]) -> RowArray | None:
    base = index.xreplace({s: sympy.S.Zero for s, _ in inner})
    rest = sympy.expand(index - base)
    if rest.free_symbols & {s for s, _ in outer}:
        return None
    strides = []
    for symbol, size in inner:
        c = coefficient(rest, symbol)
        if c is None:
            return None
        strides.append((c, size))
    return RowArray(base, tuple(strides), math.prod(n for _, n in inner))


def local_index(
    index: sympy.Expr,
    array: RowArray,
    outer: Sequence[Dim],
    inner: Sequence[Dim],
    known: Sequence[sympy.Expr] = (),
) -> sympy.Expr | None:
    """Index within the row array of a read at memory index ``index``; None if it may leave the row.

    ``known``: what is never negative where the read is done.
    """
    rest = sympy.expand(index - array.base)
    if rest.free_symbols & {s for s, _ in outer} or not rest.free_symbols <= {s for s, _ in inner}:
        return None
    if len(array.strides) == 1:
        rest = _in_steps(rest, array.strides[0][0])
    elif not array.dense:
        rest = _in_dense_order(rest, array, inner)
    if rest is None or any((coefficient(rest, s) or 0) < 0 for s, _ in inner):
        return None
    ranges = (*outer, *inner)
    within = all(never_negative(e, ranges, known) for e in (rest, array.size - 1 - rest))
    return rest if within else None


def _in_steps(rest: sympy.Expr, stride: int) -> sympy.Expr | None:
    """``rest`` in steps of ``stride``; None where it lies between them."""
    factors = rest.as_coefficients_dict().values()
    if not all(f.is_Integer and int(f) % stride == 0 for f in factors):
        return None
    return sympy.expand(rest / stride)


def _in_dense_order(rest: sympy.Expr, array: RowArray, inner: Sequence[Dim]) -> sympy.Expr | None:
    """``rest``, in the steps of the array's own loops, in steps of the same loops laid out densely."""
    dense_stride: dict[tuple[int, int], int] = {}
    expected = 1
    for stride, size in reversed(array.strides):
        dense_stride[(stride, size)] = expected
        expected *= size
    total = sympy.S.Zero
    for symbol, size in inner:
        c = coefficient(rest, symbol)
        if c == 0:
            continue
        if c is None or (c, size) not in dense_stride:
            return None
        total += symbol * dense_stride.pop((c, size))
    constant = rest.xreplace({s: sympy.S.Zero for s, _ in inner})
    return sympy.expand(total) if constant == 0 else None


def localised(
    body: Body,
    arrays: dict[str, RowArray],
    outer: Sequence[Dim],
    inner: Sequence[Dim],
    known: Sequence[sympy.Expr] = (),
    before: Sequence[Instruction] = (),
) -> Body | None:
    """Rewrite reads of buffers made in this kernel to row indices; None if one may leave its row.

    ``known``: what is never negative where ``body`` is done; ``before``: instructions around it.
    """
    instructions = []
    for i in body.instructions:
        if i.op == "load" and i.buffer in arrays:
            assert i.index is not None
            index = local_index(i.index, arrays[i.buffer], outer, inner, known)
            if index is None:
                return None
            i = replace(i, op="local", index=index)
        elif i.op == GATHER and i.buffer in arrays:
            return None
        elif i.body is not None:
            facts = not_negative(body, i.operands[0], before)
            around = (*before, *body.instructions)
            sub = localised(i.body, arrays, outer, inner, (*known, *facts), around)
            if sub is None:
                return None
            i = replace(i, body=sub)
        instructions.append(i)
    return Body(instructions, body.results)
