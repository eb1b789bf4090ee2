"""Matrix products and convolutions: which operators are some, and which of them have kernels here."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from cuda_agent_backend.graph.convolution_grad import (
    convolution_of,
    is_backward,
    is_gradient,
)
from cuda_agent_backend.graph.matrix_product import PRODUCT_TYPES, PRODUCTS

SMALLEST_PRODUCT = {"cpu": 1 << 20, "cuda": 1 << 16}
"""Multiplications, by target: below them a library's call is over before threads of ours have met on the cpu. On cuda a
library's smallest call takes 5 to 10 us, that of a kernel with its bias and what follows 3."""


def is_product(node: Node) -> bool:
    """Whether there are sketches for a node as a matrix product, or on cuda a convolution: of fixed size."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor) or result.dtype not in PRODUCT_TYPES.get(
        result.device.type, ()
    ):
        return False
    targets = ("cuda",) if is_convolution(node) else ("cpu", "cuda")
    target, sizes = result.device.type, product_sizes(node)
    if not sizes or target not in targets:
        return False
    return all(type(n) is int for n in sizes) and math.prod(sizes) >= SMALLEST_PRODUCT[target]


def is_backward_on_cuda(node: Node) -> bool:
    if not is_backward(node):
        return False
    values = [read.meta["val"] for read in node.all_input_nodes]
    types = PRODUCT_TYPES["cuda"]
    return all(x.device.type == "cuda" and x.dtype in types for x in values)


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution in one to three dimensions; a transposed one has a stride or a dilation of 1."""
    result = node.meta.get("val")
    if node.target is not torch.ops.aten.convolution.default:
        return False
    dilation, transposed = node.args[5], node.args[6]
    stride = node.args[3]
    plain = any(
        isinstance(numbers, list | tuple) and all(n == 1 for n in numbers)
        for numbers in (stride, dilation)
    )
    dims = result.dim() - 2 if isinstance(result, torch.Tensor) else 0
    return 1 <= dims <= 3 and (plain or not transposed)


def is_depthwise(node: Node) -> bool:
    """Whether a node is a convolution on cuda with one input channel to a filter and several in all."""
    if (
        not is_convolution(node)
        or node.args[6]
        or node.meta["val"].dtype not in PRODUCT_TYPES["cuda"]
    ):
        return False
    weight = node.args[1].meta["val"]  # type: ignore[union-attr]
    return bool(weight.shape[1] == 1 and node.args[8] != 1)


def product_sizes(node: Node) -> tuple[int, ...]:
    """Whose product is the number of multiplications of a matrix product, a convolution or a gradient of one; () of any
    other node."""
    if is_gradient(node):
        return convolution_of(node.args[0]).sizes  # type: ignore[arg-type]
    if not isinstance(node.target, torch._ops.OpOverload):
        return ()
    convolution = is_convolution(node)
    if not convolution and node.target._schema.name.partition("::")[2] not in PRODUCTS:
        return ()
    left, right = node.args[:2] if convolution else node.args[-2:]
    if not isinstance(left, Node) or not isinstance(right, Node):
        return ()
    sizes, result = right.meta["val"].shape, node.meta["val"].shape
    if not convolution:
        return (*result, sizes[-2])
    return (*(left.meta["val"].shape if node.args[6] else result), *sizes[1:])
