"""Attention as one operator: for which there are kernels here."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from cuda_agent_backend.operators.products import (
    SMALLEST_PRODUCT,
)

_HALF_HEADS = {torch.float16: 256, torch.bfloat16: 256}


ATTENTION = {
    "cpu": {"_scaled_dot_product_flash_attention_for_cpu": {torch.float32: 256}},
    "cuda": {
        "_scaled_dot_product_efficient_attention": {torch.float32: 256, **_HALF_HEADS},
        "_scaled_dot_product_flash_attention": _HALF_HEADS,
        "_scaled_dot_product_cudnn_attention": _HALF_HEADS,
    },
}
"""The operators of each target for which there are sketches: the largest head in each dtype."""


SQUARE_WHERE_CAUSAL = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
"""Those whose causal mask is a settled one only for as many queries as keys: it begins at the first of them, or ends at
the last, by the library's version."""


def is_attention(node: Node) -> bool:
    """Whether a node is an attention for which there are sketches: of fixed size, for inference only."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.partition("::")[2]
    operands = [a.meta.get("val") if isinstance(a, Node) else None for a in node.args[:3]]
    tensors = [x for x in operands if isinstance(x, torch.Tensor) and x.dim() == 4]
    if len(tensors) != 3 or any(x.dtype != tensors[0].dtype for x in tensors):
        return False
    largest = ATTENTION.get(tensors[0].device.type, {}).get(name, {}).get(tensors[0].dtype, 0)
    if not all(type(n) is int for x in tensors for n in (*x.shape, *x.stride())):
        return False
    if any(
        user.target is not operator.getitem or (user.args[1] and user.users) for user in node.users
    ):
        return False
    names = (argument.name for argument in node.target._schema.arguments)
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    head, work = tensors[0].shape[3], tensors[0].numel() * tensors[1].shape[2]
    square = tensors[0].shape[2] == tensors[1].shape[2]
    return (
        (square or not given.get("is_causal") or name not in SQUARE_WHERE_CAUSAL)
        and not given.get("dropout_p")
        and head % 8 == 0
        and head <= largest
        and work >= SMALLEST_PRODUCT[tensors[0].device.type]
    )
