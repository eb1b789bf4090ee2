"""The type in which a loop body's value is computed, followed from what it reads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import RowStage
from cuda_agent_backend.codegen.ir.printer import COMPUTE_TYPES
from cuda_agent_backend.codegen.ir.ssa import GATHER, PLACE, Body, Instruction, Value

TRUTH_OPERATIONS = frozenset(
    ["eq", "ne", "lt", "le", "gt", "ge", "safe_lt", "safe_le", "safe_gt", "safe_ge", "isnan", "isinf", "signbit",
     "logical_and", "logical_or", "logical_not", "logical_xor"]
)  # fmt: skip


def value_type(
    body: Body, dtype_of: Callable[[str], torch.dtype], local_type: Callable[[str], str]
) -> str:
    """Compute type of a body's first result, followed from its operands."""
    types: dict[int, str] = {}

    def visit(inside: Body) -> str:
        for i in inside.instructions:
            if i.body is not None:
                types[i.result.number] = visit(i.body)
            else:
                types[i.result.number] = _type_of(i, types, dtype_of, local_type)
        return types[inside.results[0].number]

    return visit(body)


def _type_of(
    i: Instruction,
    types: dict[int, str],
    dtype_of: Callable[[str], torch.dtype],
    local_type: Callable[[str], str],
) -> str:
    if i.op == PLACE:
        return COMPUTE_TYPES[i.dtype or torch.int64]
    if i.op in ("load", GATHER) and i.buffer is not None:
        return COMPUTE_TYPES[dtype_of(i.buffer)]
    if i.op == "local" and i.buffer is not None:
        return local_type(i.buffer)
    if i.dtype is not None:
        return COMPUTE_TYPES[i.dtype]
    if i.op in TRUTH_OPERATIONS:
        return "bool"
    operands = i.operands[1:] if i.op == "where" else i.operands
    known = [types[o.number] for o in operands if isinstance(o, Value) and o.number in types]
    if not known:
        raise Unsupported(f"type of {i.op} in a reduction of positions")
    return known[0]


def stage_dtype(stage: RowStage) -> torch.dtype:
    assert isinstance(stage.dtype, torch.dtype)
    return stage.dtype


WIDE = 2**31 - 2**20
"""Elements from which on an index needs 64 bits."""
