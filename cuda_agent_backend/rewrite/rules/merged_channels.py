"""What is added, or multiplied, to a large value from two small ones after another is put together first:
(y + a) - b = y + (a - b), and (y * a) * b = y * (a * b), where a and b are vectors or constants that broadcast to y.

So what a batch norm in evaluation subtracts goes into the bias of the linear map before it, and its two factors become
one. It holds always, also where there are infinities. But what is added must not come from what y comes from: a maximum
that is taken off takes most of y with it, and would take what was put together with it before.

The two kinds are not mixed: (y * a + b) * c is not y * (a * c) + b * c where c is infinite, and no two vectors could
say what it is there.
"""

from __future__ import annotations

import math
from typing import Any

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
    number,
    replace,
    shape_of,
)
from cuda_agent_backend.graph.matrix_product import WITH_ADDEND, matrix_product
from cuda_agent_backend.rewrite.rule import Rule

SMALL = 8
"""Times that a value is larger than what is put together apart from it."""
Small = Node | float


def _split(node: Node, names: tuple[str, ...]) -> tuple[Node, Small, bool] | None:
    """Large operand, small operand, and whether the latter is subtracted, of a node of these names."""
    if name_of(node) not in names or argument(node, "alpha", 1) != 1 or not is_float(node):
        return None
    left, right = argument(node, "self"), argument(node, "other")
    negative = name_of(node) == "sub"
    if _is_small(right, node) and _alike(left, node):
        return left, right, negative
    if not negative and _is_small(left, node) and _alike(right, node):
        return right, left, False
    return None


def _is_small(value: Any, node: Node) -> bool:
    if number(value) is not None:
        return True
    if not is_tensor(value) or dtype_of(value) != dtype_of(node):
        return False
    return SMALL * math.prod(shape_of(value)) <= math.prod(shape_of(node))


def _alike(value: Any, node: Node) -> bool:
    return (
        is_tensor(value) and shape_of(value) == shape_of(node) and dtype_of(value) == dtype_of(node)
    )


def _apart(large: Node, *small: Any) -> bool:
    """Whether the small values come from other inputs of the task than the large one."""
    own = _sources(large)
    return all(not (own & _sources(value)) for value in small if isinstance(value, Node))


def _sources(node: Node) -> set[Node]:
    seen: set[Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += one.all_input_nodes
    return {one for one in seen if one.op == "placeholder"}


def _together(at: Editor, first: Small, second: Small, target: Any) -> Small:
    """Of two small values, at least one of them a node."""
    if isinstance(first, Node):
        return at.call(target, first, second)
    if target is aten.sub.Tensor:
        assert isinstance(second, Node)
        return at.call(aten.add.Tensor, at.call(aten.neg.default, second), first)
    return at.call(target, second, first)


def _merge_added(graph: Graph, node: Node) -> Node | None:
    outer = _split(node, ("add", "sub"))
    if outer is None or len(outer[0].users) != 1:
        return None
    large, second, taken = outer
    at = Editor(graph, node)
    if name_of(large) in WITH_ADDEND:
        return _into_addend(at, large, second, taken)
    inner = _split(large, ("add", "sub"))
    if inner is None or not (isinstance(inner[1], Node) or isinstance(second, Node)):
        return None
    start, first, taken_first = inner
    if not _apart(start, first, second):
        return None
    target = aten.add.Tensor if taken == taken_first else aten.sub.Tensor
    shift = _together(at, first, second, target)
    if not _is_small(shift, node):
        return None
    return at.call(aten.sub.Tensor if taken_first else aten.add.Tensor, start, shift)


def _into_addend(at: Editor, product: Node, shift: Small, taken: bool) -> Node | None:
    found = matrix_product(product)
    if found is None or found.addend is None or found.beta != 1:
        return None
    if not isinstance(shift, Node) or not _is_small(found.addend, product):
        return None
    if not _apart(product, shift):
        return None
    target = aten.sub.Tensor if taken else aten.add.Tensor
    addend = at.call(target, found.addend, shift)
    if not _is_small(addend, product):
        return None
    return at.call(product.target, addend, *product.args[1:], **product.kwargs)  # type: ignore[arg-type]


def _merge_multiplied(graph: Graph, node: Node) -> Node | None:
    outer = _split(node, ("mul",))
    if outer is None or len(outer[0].users) != 1:
        return None
    large, second, _ = outer
    inner = _split(large, ("mul",))
    if inner is None or not (isinstance(inner[1], Node) or isinstance(second, Node)):
        return None
    at = Editor(graph, node)
    factor = _together(at, inner[1], second, aten.mul.Tensor)
    return at.call(aten.mul.Tensor, inner[0], factor) if _is_small(factor, node) else None


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(graph, "add", "sub", "mul"):
        if not node.users:
            continue
        made = _merge_multiplied(graph, node) or _merge_added(graph, node)
        if made is not None:
            replace(node, made)
            changed = True
    return changed


RULE = Rule("merged_channels", apply, exact=False)
