"""Operators that Inductor hands to a library or treats as one -> operators whose lowering gives plain loops."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.operators import is_direct_convolution

aten = torch.ops.aten

PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


def expand(graph: Graph) -> None:
    """Rewrite ``graph`` (with metadata) in place; matrix products and convolutions of float32 only."""
    _expand_online_softmax(graph)
    _expand_products(graph)
    for node in list(graph.nodes):
        if is_direct_convolution(node) and node.meta["val"].dtype == torch.float32:
            with graph.inserting_before(node):
                made = _convolution(graph, node)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _convolution(graph: Graph, node: Node) -> Node:
    """A convolution as a sum over windows of its padded input, which exist in loops only."""
    x, weight, bias, stride, padding, dilation, _, _, groups = node.args
    assert isinstance(x, Node) and isinstance(weight, Node) and isinstance(groups, int)
    dims, size = x.meta["val"].dim() - 2, weight.meta["val"].shape
    steps, edges, spread = (_each(v, dims) for v in (stride, padding, dilation))
    if any(edges):
        sides = [side for edge in reversed(edges) for side in (edge, edge)]
        x = _call(graph, aten.constant_pad_nd.default, x, sides, 0.0)
    for d in range(dims):
        x = _call(graph, aten.unfold.default, x, 2 + d, spread[d] * (size[2 + d] - 1) + 1, steps[d])
        if spread[d] > 1:
            last = x.meta["val"].dim() - 1
            x = _call(graph, aten.slice.Tensor, x, last, 0, 1 << 62, spread[d])
    n, _, *rest = x.meta["val"].shape
    windows = _call(graph, aten.view.default, x, [n, groups, 1, size[1], *rest])
    weights = _call(
        graph,
        aten.view.default,
        weight,
        [groups, size[0] // groups, size[1], *[1] * dims, *size[2:]],
    )
    terms = _call(graph, aten.mul.Tensor, windows, weights)
    inner = [3, *range(4 + dims, 4 + 2 * dims)]
    result = _call(graph, aten.sum.dim_IntList, terms, inner)
    result = _call(graph, aten.view.default, result, list(node.meta["val"].shape))
    if isinstance(bias, Node):
        shown = _call(graph, aten.view.default, bias, [-1, *[1] * dims])
        result = _call(graph, aten.add.Tensor, result, shown)
    return result


def _each(value: Any, dims: int) -> list[int]:
    """A number for each dimension, where one may stand for all."""
    return list(value) * dims if len(value) == 1 else list(value)


def _expand_products(graph: Graph) -> None:
    """Write matrix products as a broadcast multiplication and a sum, whose large terms exist in loops only."""
    for node in list(graph.nodes):
        if node.target in PRODUCTS and node.meta["val"].dtype == torch.float32:
            with graph.inserting_before(node):
                made = _with_addend(graph, node)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _with_addend(graph: Graph, node: Node) -> Node:
    *addend, left, right = node.args
    result = _sum_of_products(graph, left, right)
    if not addend:
        return result
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    if alpha != 1:
        result = _call(graph, aten.mul.Tensor, result, alpha)
    if beta == 0:  # eager does not even read the addend, so that a NaN in it is nothing
        return result
    scaled = addend[0] if beta == 1 else _call(graph, aten.mul.Tensor, addend[0], beta)
    return _call(graph, aten.add.Tensor, scaled, result)


def _sum_of_products(graph: Graph, left: object, right: object) -> Node:
    assert isinstance(left, Node)
    batched = left.meta["val"].dim() - 2
    rows = _call(graph, aten.unsqueeze.default, left, batched + 2)
    columns = _call(graph, aten.unsqueeze.default, right, batched)
    terms = _call(graph, aten.mul.Tensor, rows, columns)
    return _call(graph, aten.sum.dim_IntList, terms, [batched + 1])


def _call(graph: Graph, target: torch._ops.OpOverload, *args: object) -> Node:
    made = graph.call_function(target, args)  # type: ignore[arg-type]
    made.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args))
    return made


def _expand_online_softmax(graph: Graph) -> None:
    """Write out maximum and sum, which Inductor joins on GPUs: our passes over a row join what pays."""
    for node in graph.nodes:
        if node.op != "call_function" or "prepare_softmax_online" not in str(node.target):
            continue
        with graph.inserting_before(node):
            results = _maximum_and_sum(graph, *node.args)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _maximum_and_sum(graph: Graph, x: Node, dim: int) -> tuple[Node, ...]:
    aten, example = torch.ops.aten, x.meta["val"]
    kept = [1 if i == dim % example.dim() else n for i, n in enumerate(example.shape)]
    row = example.new_empty(kept)

    def call(target: Any, value: torch.Tensor, *args: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta["val"] = value
        return made

    largest = call(aten.amax.default, row, x, [dim], True)
    powers = call(aten.exp.default, example, call(aten.sub.Tensor, example, x, largest))
    return largest, call(aten.sum.dim_IntList, row, powers, [dim], True)
