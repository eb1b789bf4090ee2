"""Bilinear forms in a graph: written as a product, a multiplication and a sum.

For `nn.Bilinear` torch goes through the results' features one by one, each with a product of its own, and Inductor
leaves that as it is. Written so, what is between is in memory where no kernel does all of it, so it has to be small.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.nn import functional as F

MOST_BYTES = 1 << 28
"""Of what is between."""
_NAMES = ("left", "right", "weight", "bias")


def write_out(gm: GraphModule) -> bool:
    """Write the forms of a graph from Dynamo so, in place; whether there are any."""
    found = gm.graph.find_nodes(op="call_function", target=torch.bilinear)
    small = [node for node in found if _is_small(node)]
    for node in small:
        with gm.graph.inserting_before(node):
            tracer = GraphAppendingTracer(gm.graph)
            given = {n: Proxy(own, tracer) for n, own in _operands(node).items()}
            made = _bilinear(**given).node
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)
    if small:
        gm.graph.lint()
        gm.recompile()
    return bool(small)


def _operands(node: Node) -> dict[str, Node]:
    names = ("input1", "input2", "weight", "bias")
    renamed = dict(zip(names, _NAMES, strict=True))
    given = dict(zip(_NAMES, node.args, strict=False))
    given |= {renamed[name]: own for name, own in node.kwargs.items()}
    return {name: own for name, own in given.items() if isinstance(own, Node)}


def _is_small(node: Node) -> bool:
    given = _operands(node)
    values = [given[name].meta.get("example_value") for name in ("left", "weight") if name in given]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if len(tensors) != 2 or not all(type(n) is int for v in tensors for n in v.shape):
        return False
    left, weight = tensors
    between = left.numel() * weight.shape[0] * left.dtype.itemsize
    return math.prod(left.shape[:-1]) > 0 and between <= MOST_BYTES


def _bilinear(left: Any, right: Any, weight: Any, bias: Any = None) -> Any:
    """left: [..., m]; right: [..., n]; weight: [features, m, n]; [..., features]."""
    features, size, _ = weight.node.meta["example_value"].shape
    products = F.linear(right, weight.flatten(0, 1)).unflatten(-1, (features, size))
    result = (products * left.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias
