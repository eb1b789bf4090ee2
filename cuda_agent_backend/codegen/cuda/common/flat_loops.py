"""Loops seen as one flat position ``j``.

The inner loops of a pass become one position along the row. The outer ones of them are recovered by division (they are
constant over a vector), the innermost is ``j`` minus what they account for. So an index that runs through memory in row
order becomes ``base + j`` whatever loops it was written with, and equal accesses compare equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from cuda_agent_backend.codegen.ir.kernel import Dim
from cuda_agent_backend.codegen.ir.ssa import (
    Body,
    Instruction,
)

POSITION = sympy.Symbol("j", integer=True, nonnegative=True)


@dataclass(frozen=True)
class Flat:
    """Loops seen as one position: ``change`` rewrites indices, ``statements`` declare the recovered variables."""

    change: dict[sympy.Symbol, sympy.Expr]
    statements: tuple[str, ...]

    def of(self, index: sympy.Expr) -> sympy.Expr:
        return sympy.expand(index.xreplace(self.change))


def flatten(dims: Sequence[Dim], index_type: str) -> Flat:
    """``dims`` in row-major order as the one position ``j``."""
    if not dims:
        return Flat({}, ())
    statements, stride = [], 1
    rest: sympy.Expr = POSITION
    strides = []
    for _, size in reversed(dims):
        strides.append(stride)
        stride *= size
    for number, ((symbol, size), step) in enumerate(zip(dims[:-1], strides[:0:-1], strict=True)):
        quotient = f"ca::idiv(j, {step})"
        value = quotient if number == 0 else f"ca::imod({quotient}, {size})"
        statements.append(f"const {index_type} {symbol} = {value};")
        rest -= symbol * step
    return Flat({dims[-1][0]: rest}, tuple(statements))


def flat_body(body: Body, flat: Flat) -> Body:
    """``body`` with every index over the flat position."""

    def one(i: Instruction) -> Instruction:
        index = flat.of(i.index) if i.index is not None else None
        inner = flat_body(i.body, flat) if i.body is not None else None
        return Instruction(i.result, i.op, i.operands, i.dtype, i.buffer, index, inner)

    return Body([one(i) for i in body.instructions], body.results)
