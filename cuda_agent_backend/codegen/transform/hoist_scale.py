"""Sums of products an operand of which is scaled by a constant, as plain sums of products with a pointwise tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.gemm import gemm_of, is_moderate, scaled_by
from cuda_agent_backend.codegen.ir.kernel import Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, pruned
from cuda_agent_backend.codegen.ir.value_types import stage_dtype


def with_scale_hoisted(kernel: Kernel) -> Kernel:
    """``kernel`` with constants that scale operands of its sum of products on the results: there they are pointwise.

    As it is where there are none, or where they or their product are beyond `gemm.LARGEST_FACTOR`. Those below
    1 stay with their operands, as sums without them overflow earlier: they are part of a `Factor`.
    """
    first, *rest = kernel.stages
    if stage_dtype(first) != torch.float32 or not first.body.results:
        return kernel
    made = {i.result: i for i in first.body.instructions}
    product = made[first.body.results[0]]
    scaled = [_enlarged(o, made) for o in product.operands] if product.op == "mul" else []
    factors = [found[1] for found in scaled if found is not None]
    factor = math.prod(factors)
    if not factors or not all(map(is_moderate, (*factors, factor))):
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
    return found if gemm_of(found) is not None else kernel


def _enlarged(operand: object, made: dict[Value, Instruction]) -> tuple[Value, float] | None:
    """What a constant scales that is not below 1, and the constant."""
    i = made.get(operand) if isinstance(operand, Value) else None
    found = scaled_by(i, made) if i is not None else None
    return None if found is None or abs(found[1]) < 1 else found


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
