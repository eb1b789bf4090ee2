"""Rewrites of a body before it is printed for CUDA: constants folded, divisions by what a row shares marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

import sympy
import torch

from cuda_agent_backend.codegen.ir.ssa import (
    GATHER,
    Body,
    Instruction,
    Value,
    number_of,
)

FOLDED: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}


def fold_constants(body: Body) -> Body:
    """``body`` with arithmetic on float32 constants done, where it is exact.

    The compiler sees through all but extrema, which are assembly for NaN's sake; and what they hide, such as a mean of
    squares divided by the larger of 0 and a count, is then worked out for every element instead of once for the row.
    """
    known: dict[Value, float] = {}
    instructions = []
    for i in body.instructions:
        operands = [known.get(o) if isinstance(o, Value) else None for o in i.operands]
        if i.op == "constant" and i.dtype == torch.float32:
            number = _float32(number_of(i.operands[0]))
            if number is not None:
                known[i.result] = number
        elif i.op in FOLDED and None not in operands:
            made = _float32(FOLDED[i.op](*operands))
            if made:  # which of two zeros it would be is the device's to say
                known[i.result] = made
                i = Instruction(i.result, "constant", (repr(made),), torch.float32)
        instructions.append(i)
    return Body(instructions, body.results)


def _float32(number: float) -> float | None:
    """``number`` if it is finite and one of float32's."""
    same = math.isfinite(number) and torch.tensor(number, dtype=torch.float32).item() == number
    return number if same else None


def share_divisors(body: Body, scalars: set[str], rows: Collection[sympy.Symbol] = ()) -> Body:
    """``body`` with divisions of what varies along the row by what does not marked as ``divide_row``.

    ``scalars``: row-local buffers of one element. What is loaded from one place, such as a temperature, or by nothing
    but ``rows``, the loops over those, is shared too.
    """
    shared: set[int] = set()
    instructions = []
    for i in body.instructions:
        operands = [o.number for o in i.operands if isinstance(o, Value)]
        if i.op == "local":
            fixed = i.buffer in scalars
        elif i.op in ("index_expr", "load"):
            fixed = i.index is not None and i.index.free_symbols <= set(rows)
        else:
            fixed = i.op not in (GATHER, "masked") and all(o in shared for o in operands)
        if fixed:
            shared.add(i.result.number)
        elif i.op in ("truediv", "div") and len(operands) == 2 and operands[1] in shared:
            i = replace(i, op="divide_row")
        instructions.append(i)
    return Body(instructions, body.results)
