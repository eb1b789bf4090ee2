"""(c X) W = c (X W) = X (c W): a constant goes to the smallest of the other operand and the result.

It holds for finite constants other than 0. Not in half precision, where scaling X down may be what keeps the product
within range.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import Editor, argument, aten, calls, dtype_of, replace, shape_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS, MatrixProduct, matrix_product
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.rules.merged_scales import factor_of


def _size(node: Node) -> int:
    return math.prod(shape_of(node))


def _moved(at: Editor, node: Node, found: MatrixProduct, which: int, factor: float) -> Node | None:
    """The product without the constant on one operand; None where no other place is smaller."""
    operands = [found.left, found.right]
    size, other = _size(operands[which]), _size(operands[1 - which])
    if min(_size(node), other) >= size:
        return None
    operands[which] = argument(operands[which], "self")
    by_other = other < _size(node)
    if by_other:
        operands[1 - which] = at.call(aten.mul.Tensor, operands[1 - which], factor)
    addend = list(node.args[:-2])
    if by_other:
        return at.call(node.target, *addend, *operands, **node.kwargs)  # type: ignore[arg-type]
    if addend:
        scaled = {**node.kwargs, "alpha": found.alpha * factor}
        return at.call(node.target, *addend, *operands, **scaled)  # type: ignore[arg-type]
    made = at.call(node.target, *operands)  # type: ignore[arg-type]
    return at.call(aten.mul.Tensor, made, factor)


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(graph, *PRODUCTS):
        found = matrix_product(node)
        if not node.users or found is None or dtype_of(node) not in (torch.float32, torch.float64):
            continue
        for which, operand in enumerate((found.left, found.right)):
            factor = factor_of(operand)
            if factor is None or len(operand.users) != 1:
                continue
            made = _moved(Editor(graph, node), node, found, which, factor)
            if made is not None:
                replace(node, made)
                changed = True
                break
    return changed


RULE = Rule("scale_of_product", apply, exact=False)
