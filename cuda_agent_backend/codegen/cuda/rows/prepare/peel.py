"""One long row whose length no vector divides: the elements beyond the last whole vector are added by themselves.

Reading such a row element by element costs a fifth of the bandwidth. It begins where its memory does, so vectors are
aligned; where there are several rows of odd length they are not, and nothing is gained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy
import torch

from cuda_agent_backend.codegen.ir.kernel import Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import Buffer, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, numbered_from

LEAST = 1 << 16
"""Elements of a row from which reading it takes longer than a launch."""
VECTOR_BYTES = 16


def peel_tail(kernel: Kernel, buffers: Mapping[str, Buffer]) -> Kernel:
    """The kernel with sums over whole vectors first, which depend on nothing, and stages that add the rest."""
    long = [stage for stage in kernel.stages if stage.inner]
    width = max((_vector(stage, buffers) for stage in long), default=1)
    if kernel.rows > 1 or not long or not all(_can_be_cut(stage, width) for stage in long):
        return kernel
    heads: list[RowStage] = []
    others: list[RowStage] = []
    for stage in kernel.stages:
        if stage.inner:
            head, rest = _cut(stage, width)
            heads.append(head)
            others.append(rest)
        else:
            others.append(stage)
    made = {s.buffer: Local(s.buffer, 1) for head in heads for s in head.local_stores}
    return Kernel(kernel.outer, (*heads, *others), {**kernel.locals, **made})


def _vector(stage: RowStage, buffers: Mapping[str, Buffer]) -> int:
    """Elements of the widest vector of what a stage reads."""
    read = [buffers[i.buffer] for i in stage.body.loads() if i.buffer is not None]
    sizes = [buffer.dtype.itemsize for buffer in read]
    return VECTOR_BYTES // min(sizes, default=VECTOR_BYTES)


def _can_be_cut(stage: RowStage, width: int) -> bool:
    plain = not any(i.body is not None or i.op == "local" for i in stage.body.walk())
    real = isinstance(stage.dtype, torch.dtype) and stage.dtype.is_floating_point
    sums = stage.kind == "reduce" and stage.combine == "sum" and real
    return (
        plain
        and sums
        and len(stage.inner) == 1
        and stage.points >= LEAST
        and stage.points % width != 0
    )


def _cut(stage: RowStage, width: int) -> tuple[RowStage, RowStage]:
    ((symbol, size),) = stage.inner
    whole, head = size - size % width, f"{stage.name}_head"
    zero, dtype = sympy.S.Zero, stage.dtype
    assert isinstance(dtype, torch.dtype)
    total = Value(0)
    instructions = [Instruction(total, "local", dtype=dtype, buffer=head, index=zero)]
    for place in range(whole, size):
        body = numbered_from(1 + instructions[-1].result.number, stage.body)
        body = body.substitute({symbol: sympy.Integer(place)})
        sum_ = Value(1 + max(i.result.number for i in body.instructions))
        added = Instruction(sum_, "add", (total, body.results[0]))
        instructions += [*body.instructions, added]
        total = sum_
    return (
        replace(stage, inner=((symbol, whole),), stores=(), local_stores=(Store(head, zero),)),
        RowStage(
            f"{stage.name}_rest",
            "map",
            "",
            dtype,
            (),
            Body(instructions, (total,)),
            stage.stores,
            stage.local_stores,
        ),
    )
