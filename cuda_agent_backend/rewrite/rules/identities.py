"""Operators that do nothing: x * 1, x / 1, x - 0, -(-x), max(x, x), min(x, x), |-x|, relu(relu(x)), casts and back.

All hold for NaN and infinities. Not dropped: x + 0.0, which makes -0.0 positive, so that a following 1 / x has another
sign (x + (-0.0) and integers are fine); x - x and x * 0, which are NaN for NaN and infinities; a cast to a narrower
dtype and back, which rounds.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    calls,
    dtype_of,
    is_tensor,
    name_of,
    number,
    replace,
    shape_of,
)
from cuda_agent_backend.rewrite.rule import Rule

HOLDS = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}
"""The dtypes that hold every value of a dtype."""
CASTS = ("convert_element_type", "_to_copy")


def simpler(node: Node) -> Node | None:
    """A value before the node that equals the node's."""
    if name_of(node) in CASTS:
        return _before_casts(node)
    found = _same_value(node)
    same = found is not None and (shape_of(found), dtype_of(found)) == (
        shape_of(node),
        dtype_of(node),
    )
    return found if same else None


def _same_value(node: Node) -> Node | None:
    operand, other = argument(node, "self"), argument(node, "other")
    match name_of(node):
        case "mul" | "div" if argument(node, "rounding_mode") is None and number(other) == 1:
            return _tensor(operand)
        case "add" | "sub" if _adds_nothing(node):
            return _tensor(operand)
        case "maximum" | "minimum" if operand is other:
            return _tensor(operand)
        case "neg" if name_of(operand) == "neg":
            return _tensor(argument(operand, "self"))
        case "relu" | "abs" if name_of(operand) == name_of(node):
            return _tensor(operand)
    return None


def _adds_nothing(node: Node) -> bool:
    value = number(argument(node, "other"))
    if value != 0 or argument(node, "alpha") != 1:
        return False
    negative = math.copysign(1.0, value) < 0
    return not dtype_of(node).is_floating_point or negative != (name_of(node) == "sub")


def _before_casts(node: Node) -> Node | None:
    """What was cast, if it has the dtype again and lost nothing in between."""
    source = node.args[0]
    if not is_tensor(source) or set(node.kwargs) - {"dtype"}:
        return None
    if dtype_of(source) == dtype_of(node):  # type: ignore[arg-type]
        return _tensor(source)
    first = source.args[0] if name_of(source) in CASTS else None  # type: ignore[union-attr]
    if not is_tensor(first) or dtype_of(first) != dtype_of(node):  # type: ignore[arg-type]
        return None
    kept = dtype_of(source) in HOLDS.get(dtype_of(node), ())  # type: ignore[arg-type]
    return _tensor(first) if kept else None


def _tensor(value: Any) -> Node | None:
    return value if is_tensor(value) else None


def _is_negated_under_abs(node: Node) -> bool:
    return name_of(node) == "abs" and name_of(argument(node, "self")) == "neg"


def apply(graph: Graph) -> bool:
    changed = False
    names = ("mul", "div", "add", "sub", "maximum", "minimum", "neg", "relu", "abs", *CASTS)
    for node in calls(graph, *names):
        if not node.users:
            continue
        found = simpler(node)
        if found is None and _is_negated_under_abs(node):
            inner = argument(argument(node, "self"), "self")
            found = Editor(graph, node).call(node.target, inner)  # type: ignore[arg-type]
        if found is not None:
            replace(node, found)
            changed = True
    return changed


RULE = Rule("identities", apply, exact=True)
