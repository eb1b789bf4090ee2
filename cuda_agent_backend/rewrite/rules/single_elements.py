"""A sum, mean, product, maximum or minimum over dimensions of size one is its operand; so is logsumexp of one.

It holds for NaN and infinities. The logsumexp is that of post-grad graphs, log(sum(exp(x - m))) + m, where m is x, or 0
where x is infinite: for finite x that is log(exp(0)) + x, for infinities log(exp(x)) + 0. A softmax over one element is
not replaced by 1: it is NaN for NaN and infinities.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    dtype_of,
    is_float,
    is_tensor,
    is_zero,
    name_of,
    reduced_dims,
    replace,
    shape_of,
    unviewed,
)
from cuda_agent_backend.rewrite.rule import Rule

REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")
PAIRS = ("max", "min")
INFINITY = float("inf")


def _of_one(node: Node, operand: Any) -> bool:
    """Whether a reduction takes away nothing but dimensions of size one."""
    if not is_tensor(operand):
        return False
    return all(shape_of(operand)[d] == 1 for d in reduced_dims(node))


def reduced_to_itself(node: Node) -> Node | None:
    """What the node reduces over single elements; the node may be a selection from a maximum with its place."""
    if node.target is operator.getitem:
        whole, chosen = node.args
        assert isinstance(whole, Node)
        if name_of(whole) not in PAIRS or chosen != 0:
            return None
        node = whole
    elif name_of(node) not in REDUCTIONS:
        return None
    operand = argument(node, "self")
    found: Node | None = operand if _of_one(node, operand) else None
    return found


def logarithm_of_one(node: Node) -> Node | None:
    """x, where the node is log(exp(x - m)) + m with that m; shapes may differ by dimensions of size one."""
    if name_of(node) != "add" or argument(node, "alpha") != 1:
        return None
    for left, right in ((0, 1), (1, 0)):
        shift = unviewed(node.args[right])
        sub = _operand(_operand(node.args[left], "log"), "exp")
        if name_of(sub) != "sub" or argument(sub, "alpha") != 1:
            continue
        x = unviewed(argument(sub, "self"))
        if unviewed(argument(sub, "other")) is shift and _is_finite_part(shift, x):
            same = is_float(x) and math.prod(shape_of(x)) == math.prod(shape_of(node))
            return x if same else None
    return None


def _operand(node: Any, name: str) -> Any:
    """The operand of a call of that name, in whatever shape; None of any other node."""
    node = unviewed(node)
    return unviewed(argument(node, "self")) if name_of(node) == name else None


def _is_finite_part(node: Node, x: Node) -> bool:
    """Whether a node is x where that is not infinite, else 0."""
    if name_of(node) != "where" or unviewed(argument(node, "other")) is not x:
        return False
    zero, equal = argument(node, "self"), unviewed(argument(node, "condition"))
    if not is_zero(zero) or name_of(equal) != "eq":
        return False
    size = unviewed(argument(equal, "self"))
    if argument(equal, "other") != INFINITY or name_of(size) != "abs":
        return False
    return unviewed(argument(size, "self")) is x


def apply(graph: Graph) -> bool:
    changed = False
    for node in list(graph.nodes):
        if not is_tensor(node) or not node.users or node.op != "call_function":
            continue
        found = reduced_to_itself(node) or logarithm_of_one(node)
        if found is not None and dtype_of(found) == dtype_of(node):
            replace(node, Editor(graph, node).shaped(found, shape_of(node)))
            changed = True
    return changed


RULE = Rule("single_elements", apply, exact=True)
