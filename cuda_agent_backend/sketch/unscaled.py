"""Sums of products an operand of which is scaled by a constant, as plain sums of products with a pointwise tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch

from cuda_agent_backend.sketch.contraction import contraction_of
from cuda_agent_backend.sketch.cuda_parts import stage_dtype
from cuda_agent_backend.sketch.lower import Store
from cuda_agent_backend.sketch.nest import Kernel, Local, RowStage
from cuda_agent_backend.sketch.ssa import Body, Instruction, Value, number_of, pruned

LARGEST_FACTOR = 2.0**20
"""Of those that results are scaled by, whose reciprocal is the smallest: sums that are made before they are scaled
must not leave the range that scaled operands keep them in."""


def unscaled(kernel: Kernel) -> Kernel:
    """``kernel`` with constants that scale operands of its sum of products on the results: there they are pointwise.

    As it is where there are none, or where they or their product are beyond `LARGEST_FACTOR`.
    """
    first, *rest = kernel.stages
    if stage_dtype(first) != torch.float32 or not first.body.results:
        return kernel
    made = {i.result: i for i in first.body.instructions}
    product = made[first.body.results[0]]
    scaled = [_scale(o, made) for o in product.operands] if product.op == "mul" else []
    factors = [found[1] for found in scaled if found is not None]
    factor = math.prod(factors)
    if not factors or not all(map(_is_moderate, (*factors, factor))):
        return kernel
    plain = [
        o if found is None else found[0] for o, found in zip(product.operands, scaled, strict=True)
    ]
    body = _with_operands(first.body, product, plain)
    total = f"{first.name}_total"
    sums = replace(first, body=body, stores=(), local_stores=(Store(total, sympy.S.Zero),))
    scaling = _scaling(first, total, factor)
    locals_ = {**kernel.locals, total: Local(total, 1)}
    found = Kernel(kernel.outer, (sums, scaling, *rest), locals_)
    return found if contraction_of(found) is not None else kernel


def _is_moderate(factor: float) -> bool:
    return 1 / LARGEST_FACTOR <= abs(factor) <= LARGEST_FACTOR


def _scale(operand: object, made: dict[Value, Instruction]) -> tuple[Value, float] | None:
    """What a constant scales, and the constant."""
    i = made.get(operand) if isinstance(operand, Value) else None
    if i is None or i.op != "mul":
        return None
    for one, other in (i.operands, i.operands[::-1]):
        constant = made.get(other) if isinstance(other, Value) else None
        if isinstance(one, Value) and constant is not None and constant.op == "constant":
            return one, number_of(constant.operands[0])
    return None


def _with_operands(body: Body, product: Instruction, operands: Sequence[object]) -> Body:
    changed = replace(product, operands=tuple(operands))
    return pruned(Body([changed if i is product else i for i in body.instructions], body.results))


def _scaling(first: RowStage, total: str, factor: float) -> RowStage:
    steps = [
        Instruction(Value(0), "local", dtype=torch.float32, buffer=total, index=sympy.S.Zero),
        Instruction(Value(1), "constant", (repr(factor),), torch.float32),
        Instruction(Value(2), "mul", (Value(0), Value(1))),
    ]
    body, name = Body(steps, (Value(2),)), f"{first.name}_scaled"
    return RowStage(name, "map", "", first.dtype, (), body, first.stores, first.local_stores)
