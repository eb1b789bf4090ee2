"""A diagonal put into a tensor: each element is one of the two, where Inductor copies the tensor and writes into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import Pointwise
from torch._inductor.virtualized import ops
from torch.fx import Node


def lowered(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a diagonal_scatter; None for anything else."""
    if node.target is not torch.ops.aten.diagonal_scatter.default:
        return None
    return _scattered(*args, **kwargs)


def _scattered(into: Any, values: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    size, dtype = into.get_size(), into.get_dtype()
    first, second = dim1 % len(size), dim2 % len(size)
    if values.get_size()[-1] == 0:
        return lowering.clone(into)
    start, load = into.make_loader(), values.make_loader()
    begin = max(0, -offset)  # the place along dim1 of the diagonal's first element

    def element(index: Sequence[Any]) -> Any:
        along, across = (sympy.sympify(index[n]) for n in (first, second))
        rest = [i for n, i in enumerate(index) if n not in (first, second)]
        on = ops.eq(
            ops.index_expr(along + offset, torch.int64), ops.index_expr(across, torch.int64)
        )
        value = ops.masked(on, lambda: ops.to_dtype(load([*rest, along - begin]), dtype), 0.0)
        return ops.where(on, value, start(index))

    return Pointwise.create(device=into.get_device(), dtype=dtype, inner_fn=element, ranges=size)
