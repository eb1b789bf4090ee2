"""What a value of a stage's body is made of: values that are worked out alike compare equal, whatever their names."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value


class Part(enum.Enum):
    """Values of attention pooling that are known by what they mean."""

    SCORE = "of a token, a sum of products"
    RAISED = "the exponential of a score less the highest of its batch"
    MASS = "the sum of a batch's exponentials"
    WEIGHT = "an exponential divided by their sum"


@dataclass(frozen=True)
class Operation:
    """An instruction on what its operands are. Operands that are no values stand for themselves."""

    op: str
    operands: tuple[Expression | Any, ...] = ()
    dtype: torch.dtype | None = None
    buffer: str | None = None
    index: sympy.Expr | None = None

    @staticmethod
    def load(i: Instruction) -> Operation:
        """What a load reads, with its index expanded."""
        return Operation("load", (), i.dtype, i.buffer, sympy.expand(i.index))


@dataclass(frozen=True)
class Reduction:
    """All values of a loop joined: ``combine`` is "max" or "sum"."""

    combine: str
    of: Expression


Expression = Part | Operation | Reduction


def expression_of(
    body: Body,
    known: Mapping[str, Expression],
    change: Mapping[sympy.Symbol, sympy.Symbol],
) -> Expression:
    """What the body's value is made of.

    known: of buffers, wherever they are read. change: new names of loop variables. Raises Unsupported on masks.
    """
    found: dict[Value, Expression] = {}
    for i in body.instructions:
        if i.body is not None:
            raise Unsupported("masked scores")
        if i.buffer is not None and i.buffer in known:
            found[i.result] = known[i.buffer]
            continue
        operands = tuple(found[o] if isinstance(o, Value) else o for o in i.operands)
        index = None if i.index is None else sympy.expand(i.index.xreplace(dict(change)))
        found[i.result] = Operation(i.op, operands, i.dtype, i.buffer, index)
    return found[body.results[0]]


def softmax_parts(score: Expression) -> dict[Expression, Part]:
    """The steps of a softmax of ``score``, by what they are made of."""
    raised = Operation("exp", (Operation("sub", (score, Reduction("max", score))),))
    mass = Reduction("sum", raised)
    weight = Operation("truediv", (raised, mass))
    return {raised: Part.RAISED, mass: Part.MASS, weight: Part.WEIGHT}


def weighed(token: Expression) -> tuple[Expression, ...]:
    """What a token times its weight may look like."""
    divided = Operation("truediv", (Part.RAISED, Part.MASS))
    return tuple(
        Operation("mul", factors)
        for weight in (Part.WEIGHT, divided)
        for factors in ((weight, token), (token, weight))
    )
