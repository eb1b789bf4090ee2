"""Recurrent layers as one operator: for which there are kernels here."""

from __future__ import annotations

import torch
from torch.fx import Node

from sandbox.graph import recurrent_ops as recurrent
from sandbox.operator_library import NAMESPACE


def is_recurrent(node: Node) -> bool:
    """Whether a node is a recurrent layer for which there are sketches: on cuda, float32 of fixed size."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != NAMESPACE:
        return False
    if target._schema.name.partition("::")[2] not in recurrent.KINDS:
        return False
    values = [read.meta.get("val") for read in node.all_input_nodes]
    return all(
        isinstance(x, torch.Tensor)
        and (x.device.type, x.dtype) == ("cuda", torch.float32)
        and all(type(n) is int for n in (*x.shape, *x.stride()))
        for x in values
    )
