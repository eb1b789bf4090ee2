"""One form of s x - max(s x), the beginning of a softmax of scaled values, where Inductor made two forms of it.

Inductor (torch 2.13) computes s (x - max(x)) as well, and takes that for rows in which all of s x is finite; which form
it takes is a reduction of its own. Both are equal in real numbers, and for all other rows it takes what was written.

What was written rounds s x, which is as large as s is, and is not as exact. So the form for finite rows is taken for
all of them, and s max(x), one number a row, says which row is NaN: t - t is 0 for a finite t, else NaN. In a softmax
a row in which s x is plus infinity or NaN anywhere, or minus infinity everywhere, is NaN as a whole. Minus infinity
among others stays what it is.

Between two products, and scaled by a number, it stays as written: attention and attention pooling are known in that
form alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    aten,
    calls,
    dtype_of,
    is_float,
    is_tensor,
    name_of,
    reduced_dims,
    replace,
    shape_of,
)
from cuda_agent_backend.graph.matrix_product import PRODUCTS
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


def is_in_attention(node: Node) -> bool:
    """Whether scaled values come from a product, and their softmax goes into another, as in attention and in attention
    pooling."""
    powers = [user for user in node.users if name_of(user) == "exp"]
    softmaxes = [user for power in powers for user in power.users if name_of(user) == "div"]
    return _is_product_among(node, lambda one: one.all_input_nodes) and any(
        _is_product_among(one, lambda one: list(one.users)) for one in softmaxes
    )


def _is_product_among(node: Node, neighbours: Callable[[Node], list[Node]]) -> bool:
    """Whether a product is reached from a node by way of neighbours."""
    seen, left = {node}, [node]
    while left:
        found = [near for near in neighbours(left.pop()) if near not in seen]
        if any(_is_any_product(near) for near in found):
            return True
        seen.update(found)
        left += found
    return False


def _is_any_product(node: Node) -> bool:
    """Of matrices, or of vectors as Inductor writes it."""
    is_sum = name_of(node) == "sum" and name_of(argument(node, "self")) == "mul"
    return bool(is_sum or name_of(node) in PRODUCTS)


def is_softmax_of(node: Node, dims: tuple[int, ...]) -> bool:
    """Whether all that is made of a node is a softmax over these dimensions, or the logarithm of one."""
    powers = [user for user in node.users if name_of(user) == "exp"]
    if len(powers) != 1:
        return False
    (power,) = powers
    sums = [user for user in power.users if name_of(user) == "sum"]
    if not sums or not all(reduced_dims(one) == dims and argument(one, "keepdim") for one in sums):
        return False

    def is_quotient(user: Node) -> bool:
        is_div = name_of(user) == "div" and argument(user, "self") is power
        return is_div and argument(user, "other") in sums

    def is_logarithm(user: Node) -> bool:
        is_sub = name_of(user) == "sub" and argument(user, "self") is node
        return is_sub and _operand(argument(user, "other"), "log") in sums

    return all(user is power or is_logarithm(user) for user in node.users) and all(
        user in sums or is_quotient(user) for user in power.users
    )


def exact(node: Node, written: Node) -> Node | None:
    """s (x - max(x)) + (t - t) with t = s max(x), where that is the same in a softmax.

    Not where s x is in half precision that overflows sooner than what the softmax is computed in: minus infinity among
    finite numbers would become one of them.
    """
    stable = _uncast(argument(node, "self"))
    shifted = _uncast(argument(stable, "self"))
    if not is_softmax_of(node, _rows(written)) or _is_of_less_range(written):
        return None
    if not _is_not_negative(argument(stable, "other")):
        return None
    edit = Editor(node.graph, node)
    largest = edit.cast(argument(shifted, "other"), dtype_of(argument(stable, "self")))
    top = edit.cast(edit.call(stable.target, largest, argument(stable, "other")), dtype_of(node))
    if shape_of(top) != shape_of(largest):  # the scale is not one number a row
        return None
    nothing = edit.call(aten.sub.Tensor, top, top)
    return edit.call(aten.add.Tensor, argument(node, "self"), nothing)


def _is_not_negative(factor: Any) -> bool:
    """Of a number, or of a tensor times its own sign. A row's minus infinity would be its plus infinity otherwise."""
    if not isinstance(factor, Node):
        return bool(factor >= 0)
    if name_of(factor) != "mul":
        return False
    a, b = argument(factor, "self"), argument(factor, "other")
    return _is_sign(a, b) or _is_sign(b, a)


def _is_of_less_range(written: Node) -> bool:
    """Whether s x is of integers, or in a dtype whose largest number is far below that of the shifted values."""
    values = _uncast(argument(written, "self"))
    if not is_float(values):
        return True
    return bool(torch.finfo(dtype_of(values)).max < torch.finfo(dtype_of(written)).max / 2)


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(graph, "where"):
        written = as_written(node)
        if written is None or dtype_of(written) != dtype_of(node):
            continue
        by_number = not isinstance(argument(_uncast(argument(node, "self")), "other"), Node)
        found = written if by_number and is_in_attention(node) else exact(node, written)
        if found is not None:
            replace(node, found)
            changed = True
    return changed


RULE = Rule("scaled_softmax", apply, exact=False)
