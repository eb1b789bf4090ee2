"""Adaptive poolings: for which there are kernels here."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

ADAPTIVE_POOLINGS = (
    torch.ops.aten._adaptive_avg_pool2d.default,
    torch.ops.aten._adaptive_avg_pool3d.default,
    torch.ops.aten.adaptive_max_pool2d.default,
    torch.ops.aten.adaptive_max_pool3d.default,
)
"""Those of the larger windows are extern kernels to Inductor."""


def is_adaptive_pooling(node: Node) -> bool:
    """Whether a node is an adaptive pooling for which there are sketches: of real numbers, without their places."""
    if node.target not in ADAPTIVE_POOLINGS or not isinstance(node.args[0], Node):
        return False
    value = node.args[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return False
    return "max" not in str(node.target) or values_only(node)


def values_only(node: Node) -> bool:
    """Whether nobody wants to know where the maxima of a pooling are."""
    return all(u.target is operator.getitem and (u.args[1] == 0 or not u.users) for u in node.users)
