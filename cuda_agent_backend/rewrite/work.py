"""How much a task computes, counted on its graph: to say whether a rewrite saves work, and which form saves most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import argument, is_tensor, name_of, shape_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS, matrix_product

FREE = frozenset(
    {
        "view",
        "reshape",
        "_unsafe_view",
        "unsqueeze",
        "squeeze",
        "permute",
        "expand",
        "clone",
        "alias",
    }
    | {
        "slice",
        "select",
        "full",
        "scalar_tensor",
        "iota",
        "t",
        "transpose",
        "as_strided",
        "unfold",
        "split",
        "unbind",
        "diagonal",
    }
)
"""Views, copies and constants: kernels read through them."""
WORTH = 0.9
"""Another form is worth trying if it does at most this part of the arithmetic, or fewer passes."""


@dataclass(frozen=True, order=True)
class Work:
    """operations: additions, multiplications and the like, of all values. passes: products, poolings and reductions.

    convolved: multiplications in convolutions, beside which others count for nothing. Among operations a convolution is
    one of each value, or else nothing that is saved beside it would be worth trying.
    """

    convolved: int
    operations: int
    passes: int

    def saves_over(self, other: Work) -> bool:
        """Whether a form with this work is worth trying beside one with the other."""
        if self.convolved != other.convolved:
            return self.convolved < other.convolved
        if self.operations > other.operations:
            return False
        return self.passes < other.passes or self.operations <= WORTH * other.operations


def work_of(graph: Graph) -> Work:
    """The work of a graph with fake values."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    found = [_work(node) for node in nodes]
    return Work(
        sum(map(_convolved, nodes)),
        sum(operations for operations, _ in found),
        sum(passes for _, passes in found),
    )


def _convolved(node: Node) -> int:
    if name_of(node) != "convolution":
        return 0
    source = argument(node, "input") if argument(node, "transposed") else node
    return _elements(source) * math.prod(shape_of(argument(node, "weight"))[1:])


def _work(node: Node) -> tuple[int, int]:
    name, out = name_of(node), _elements(node)
    if not name or name in FREE:
        return 0, 0
    product = matrix_product(node) if name in PRODUCTS else None
    if product is not None:
        return 2 * out * shape_of(product.left)[-1], 1
    read = max((_elements(operand) for operand in node.all_input_nodes), default=0)
    if "pool" in name:
        window = argument(node, "kernel_size")
        return max(read, out * (math.prod(window) if window else 1)), 1
    return max(read, out), int(read > out)


def _elements(node: Node) -> int:
    if is_tensor(node):
        return math.prod(shape_of(node))
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else ()
    return max((part.numel() for part in parts if isinstance(part, torch.Tensor)), default=0)
