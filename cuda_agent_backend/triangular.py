"""Operands of products of which a mask that is known in advance leaves a triangle or a band, and zeros elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from cuda_agent_backend.operators import Kind, product_sizes
from cuda_agent_backend.rewrite.edit import argument, name_of
from cuda_agent_backend.rewrite.products import PRODUCTS

PLACES = ("iota", "arange")
ZEROS = ("scalar_tensor", "full", "full_like", "zeros", "zeros_like")
SMALLEST = 128
"""Rows, columns and terms from which on a product has blocks that may leave out terms worth leaving out."""


VIEWS = ("permute", "transpose", "t", "expand", "view", "unsqueeze", "squeeze")


def masks_a_factor(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether ``node`` masks an operand that only large products on cuda read, as it is or through views."""
    if kinds[node] is not Kind.COMPUTE or masked_operand(node) is None or not node.users:
        return False
    return all(_reads(user, node, kinds) for user in node.users)


def _reads(user: Node, node: Node, kinds: Mapping[Node, Kind]) -> bool:
    if name_of(user) in VIEWS:
        return bool(user.users) and all(_reads(other, user, kinds) for other in user.users)
    if masked_operand(user) is not None:
        return masks_a_factor(user, kinds)
    return (
        kinds[user] is Kind.PRODUCT
        and name_of(user) in PRODUCTS
        and node in user.args[-2:]
        and node not in user.args[:-2]
        and user.meta["val"].device.type == "cuda"
        and min(product_sizes(user)[-3:]) >= SMALLEST
    )


def unmasked(node: Node) -> Node:
    """What is left of ``node`` without its masks, one within the other; itself where it has none."""
    source = masked_operand(node)
    return node if source is None else unmasked(source)


def masked_operand(node: Node) -> Node | None:
    """The tensor of which ``node`` keeps what a mask of places says; None of any other node.

    ``where`` with zeros, times a masked constant, or either plus a constant, as a diagonal of ones is.
    """
    name = name_of(node)
    if name == "where":
        return _of_where(node)
    if name not in ("mul", "add") or len(node.args) != 2:
        return None
    for own, other in (node.args, node.args[::-1]):
        if not isinstance(own, Node) or not isinstance(other, Node) or not is_constant(other):
            continue
        if name == "mul" and _has_places(other) and not is_constant(own):
            return own
        if name == "add" and masked_operand(own) is not None:
            return own
    return None


def _of_where(node: Node) -> Node | None:
    condition, *values = (argument(node, name) for name in ("condition", "self", "other"))
    if not isinstance(condition, Node) or not _has_places(condition) or not is_constant(condition):
        return None
    kept = [v for v in values if isinstance(v, Node) and not is_constant(v)]
    zeros = [v for v in values if isinstance(v, Node) and _is_zero(v)]
    return kept[0] if len(kept) == 1 and len(zeros) == 1 else None


def _is_zero(node: Node) -> bool:
    if name_of(node) not in ZEROS:
        return False
    given = [a for a in node.args if isinstance(a, int | float) and not isinstance(a, bool)]
    return "zeros" in name_of(node) or given == [0]


def is_constant(node: Node) -> bool:
    """Whether no tensor that is given is part of ``node``."""
    return node.op == "call_function" and all(map(is_constant, node.all_input_nodes))


def _has_places(node: Node) -> bool:
    return name_of(node) in PLACES or any(map(_has_places, node.all_input_nodes))
