"""Sorts of rows and selections of their largest or smallest: for which there are kernels here."""

from __future__ import annotations

import torch
from torch.fx import Node

SORTS = frozenset({"aten.sort.default", "aten.sort.stable", "aten.topk.default"})
"""Libraries run them; there are sketches for those of cuda."""


LONGEST_SORT = 8192
"""Elements of a row that fit into a block's shared memory, positions included."""


LARGEST_SELECTION = 256


SHORTEST_SORTS = 1 << 12
"""Elements in all below which the time is that of a launch."""


SORTED_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    }
)  # fmt: skip


def is_sort(node: Node) -> bool:
    """Whether a node is a sort or a selection for which there are sketches: on cuda, rows of fixed size."""
    if str(node.target) not in SORTS or not isinstance(node.args[0], Node):
        return False
    value = node.args[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "cuda" or not value.dim():
        return False
    if not all(type(n) is int for n in (*value.shape, *value.stride())):
        return False
    if value.dtype not in SORTED_DTYPES or value.numel() < SHORTEST_SORTS:
        return False
    names = (argument.name for argument in node.target._schema.arguments)  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    if "k" in given:
        few = type(given["k"]) is int and 1 <= given["k"] <= LARGEST_SELECTION
        return few and given.get("sorted", True) is True
    dim = given.get("dim", -1)
    return isinstance(dim, int) and 2 <= value.shape[dim] <= LONGEST_SORT
