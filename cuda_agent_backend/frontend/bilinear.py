"""Bilinear forms in a graph: written as a product, a multiplication and a sum.

For `nn.Bilinear` torch goes through the results' features one by one, each with a product of its own, and Inductor
leaves that as it is. Written so, what is between is in memory where no kernel does all of it, so it has to be small.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

SCHEMA = torch.ops.aten.bilinear.default._schema
MOST_BYTES = 1 << 28
"""Of what is between."""


def is_small(given: dict[str, Any]) -> bool:
    """Whether a form, nodes by the names of the operator's arguments, is small enough, and of fixed sizes.

    Only one of floating numbers is: a sum of whole ones would be in 64 bits, and no library has their product on a GPU.
    """
    values = [given[name].meta.get("example_value") for name in ("input1", "input2", "weight")]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if len(tensors) != 3 or not all(type(n) is int for v in tensors for n in v.shape):
        return False
    if not all(v.is_floating_point() for v in tensors):
        return False
    left, _, weight = tensors
    between = left.numel() * weight.shape[0] * left.dtype.itemsize
    return math.prod(left.shape[:-1]) > 0 and between <= MOST_BYTES


def write_out(input1: Any, input2: Any, weight: Any, bias: Any) -> Any:
    """The form as a product, a multiplication and a sum; all are proxies.

    input1: [..., m]. input2: [..., n]. weight: [features, m, n]. The result: [..., features].
    """
    features, size, _ = weight.node.meta["example_value"].shape
    rows = _laid_out(weight).flatten(0, 1)
    products = F.linear(_laid_out(input2), rows).unflatten(-1, (features, size))
    result = (products * input1.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def _laid_out(factor: Any) -> Any:
    """A factor whose gradient lies in memory as the operator's own would: without gaps, the last dimension first. That
    of a product's factor follows the factor, and where that has gaps, is transposed."""
    value = factor.node.meta["example_value"]
    return factor.contiguous() if value.requires_grad else factor
