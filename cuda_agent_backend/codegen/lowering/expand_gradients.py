"""Gradients of convolutions: that of the input as a convolution the other way, that of the weight as a sum of products.

Neither is more than loops: what the sum over all places of an image runs through is never in memory.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.codegen.lowering.expand_convolution import call, padded, windows_of
from cuda_agent_backend.graph.convolution_grad import OF_INPUT, Convolution, convolution_of
from cuda_agent_backend.graph.edit import shape_of

aten = torch.ops.aten


def gradient(graph: Graph, node: Node) -> Node:
    """What computes the same as ``node``, which `gradients.is_sum_of_products`."""
    whole, place = node.args
    assert isinstance(whole, Node)
    it = convolution_of(whole)
    return _of_input(graph, it) if place == OF_INPUT else _of_weight(graph, it)


def _of_input(graph: Graph, it: Convolution) -> Node:
    """The convolution of the gradient that leads from places of the result to those of the input."""
    beyond = [0] * len(it.stride) if it.transposed else _left_over(it)
    geometry = (it.stride, it.padding, it.dilation, not it.transposed, beyond, it.groups)
    return call(graph, aten.convolution.default, it.gradient, it.weight, None, *geometry)


def _left_over(it: Convolution) -> list[int]:
    """Elements at the end of a convolution's padded input at which no window begins, for want of a whole step."""
    sizes, lengths = shape_of(it.weight)[2:], shape_of(it.image)[2:]
    return [
        (length + 2 * p - d * (k - 1) - 1) % s
        for length, k, s, p, d in zip(
            lengths, sizes, it.stride, it.padding, it.dilation, strict=True
        )
    ]


def _of_weight(graph: Graph, it: Convolution) -> Node:
    """The sum over the batch and all places of what a filter is laid on, times what it is multiplied into.

    A transposed convolution lays its filters on the gradient. In one dimension, with stride s and padding p, tap j is
    the sum over i of image[s i + j - p] times other[i].
    """
    image, other = (it.gradient, it.image) if it.transposed else (it.image, it.gradient)
    outputs, channels, *size = shape_of(it.weight)
    dims, groups = len(size), it.groups
    image = padded(graph, image, [(edge, edge) for edge in it.padding])
    windows = windows_of(graph, image, size, it.stride, it.dilation)
    n, _, *rest = shape_of(windows)
    windows = call(graph, aten.view.default, windows, [n, groups, 1, channels, *rest])
    shape = [n, groups, outputs // groups, 1, *shape_of(other)[2:], *[1] * dims]
    terms = call(graph, aten.mul.Tensor, windows, call(graph, aten.view.default, other, shape))
    inner = [0, *range(4, 4 + dims)]
    result = call(graph, aten.sum.dim_IntList, terms, inner)
    return call(graph, aten.view.default, result, [outputs, channels, *size])
