"""s x - max(s x), the beginning of a softmax of scaled values, as it was written before Inductor made two forms of it.

Inductor (torch 2.13) computes s (x - max(x)) as well, and takes that for rows in which all of s x is finite; which form
it takes is a reduction of its own. Both are equal in real numbers, and for all other rows it takes what was written.
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import argument, calls, is_tensor, name_of, reduced_dims, replace
from cuda_agent_backend.rewrite.rule import Rule

SCALES = ("mul", "div")
BOTH = ("mul", "bitwise_and", "logical_and")
Scale = tuple[str, Any, Any]
"""The operation, what is scaled, and by what: a node or a number."""


def shifted_by_maximum(node: Any) -> Node | None:
    """x, where the node is x - max(x) with the maximum's dimensions kept."""
    if name_of(node) != "sub" or argument(node, "alpha") != 1:
        return None
    x, largest = argument(node, "self"), argument(node, "other")
    if name_of(largest) != "amax" or argument(largest, "self") is not x:
        return None
    return x if is_tensor(x) and argument(largest, "keepdim") else None


def says_all_are_finite(node: Any, x: Node) -> bool:
    """Whether a node is: no element of x, over some of its dimensions, is NaN or infinite."""
    some = _operand(node, "logical_not")
    if name_of(some) != "any":
        return False
    finite = _operand(argument(some, "self"), "logical_not")
    if name_of(finite) not in BOTH:
        return False
    number, bounded = argument(finite, "self"), argument(finite, "other")
    if name_of(number) != "eq" or argument(number, "self") is not x:
        return False
    size = _operand(bounded, "ne")
    is_bounded = name_of(size) == "abs" and argument(bounded, "other") == math.inf
    return argument(number, "other") is x and is_bounded and argument(size, "self") is x


def scaled(node: Any) -> Scale | None:
    """How a node is scaled, in whatever dtype that is."""
    node = _uncast(node)
    if name_of(node) not in SCALES:
        return None
    if name_of(node) == "div" and argument(node, "rounding_mode") is not None:
        return None
    return name_of(node), _uncast(argument(node, "self")), argument(node, "other")


def as_written(node: Node) -> Node | None:
    """s x - max(s x), where the node is that or s (x - max(x)), whichever Inductor's guard says."""
    guard, stable, written = (argument(node, name) for name in ("condition", "self", "other"))
    values = shifted_by_maximum(written)
    if values is None or not says_all_are_finite(guard, values):
        return None
    before, after = scaled(values), scaled(stable)
    shifted = None if after is None else shifted_by_maximum(after[1])
    if before is None or after is None or shifted is None or before[0] != after[0]:
        return None
    if _rows(written) != _rows(after[1]):
        return None
    return written if _is_same(before, _uncast(shifted), after[2]) else None


def _rows(node: Node) -> tuple[int, ...]:
    """The dimensions of the maximum that a node is shifted by."""
    return reduced_dims(argument(node, "other"))


def _is_same(before: Scale, shifted: Any, factor: Any) -> bool:
    """Whether ``shifted``, of x times a sign, times ``factor``, which has the sign too, is x scaled as ``before``."""
    _, x, scale = before
    ways = [(x, scale), (scale, x)] if before[0] == "mul" else [(x, scale)]
    signed = scaled(shifted)
    for value, by in ways:
        if shifted is value and factor == by:
            return True
        if signed is None or signed[0] != "mul" or signed[1] is not _uncast(value):
            continue
        sign = signed[2]
        if isinstance(by, Node):
            if _is_sign(sign, by) and _is_product(factor, sign, by):
                return True
        elif sign in (1, -1) and isinstance(factor, int | float) and sign * factor == by:
            return True
    return False


def _is_sign(node: Any, of: Node) -> bool:
    """Whether a node is 1 where ``of`` is not negative, and -1 elsewhere."""
    if name_of(node) != "where":
        return False
    positive, one, less = (argument(node, name) for name in ("condition", "self", "other"))
    is_positive = name_of(positive) == "ge" and argument(positive, "self") is of
    is_one = name_of(one) == "scalar_tensor" and argument(one, "s") == 1
    return (
        is_positive and argument(positive, "other") == 0 and is_one and _operand(less, "neg") is one
    )


def _is_product(node: Any, left: Any, right: Any) -> bool:
    if name_of(node) != "mul":
        return False
    pair = (argument(node, "self"), argument(node, "other"))
    return pair in ((left, right), (right, left))


def _operand(node: Any, name: str) -> Any:
    """The operand of a call of that name; None of any other node."""
    return argument(node, "self") if name_of(node) == name else None


def _uncast(node: Any) -> Any:
    while name_of(node) == "convert_element_type":
        node = argument(node, "a")
    return node


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(graph, "where"):
        found = as_written(node)
        if found is not None and found.meta["val"].dtype == node.meta["val"].dtype:
            replace(node, found)
            changed = True
    return changed


RULE = Rule("scaled_softmax", apply, exact=False)
