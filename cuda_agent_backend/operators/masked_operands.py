"""Operands of products of which a mask that is known in advance leaves a triangle or a band, and zeros elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import argument, name_of, unviewed
from cuda_agent_backend.graph.matrix_product import PRODUCTS
from cuda_agent_backend.operators.kinds import Kind
from cuda_agent_backend.operators.products import product_sizes

PLACES = ("iota", "arange")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ZEROS, FILLED = ("zeros", "zeros_like"), ("scalar_tensor", "full", "full_like")
MOST_OPERATORS = 64
"""Of a constant: large graphs are not looked through for each operator."""
SMALLEST = 128
"""Rows, columns and terms from which on a product has blocks that may leave out terms worth leaving out."""


MINUS_INFINITY = float("-inf")
VIEWS_OF_ALL = ("unsqueeze", "squeeze", "view", "reshape")
VIEWS = ("permute", "transpose", "t", "expand", "view", "unsqueeze", "squeeze")


def masks_a_factor(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether ``node`` masks an operand that one large product on cuda reads and nothing else, as it is or through
    views: each product would store it anew."""
    if kinds[node] is not Kind.COMPUTE or masked_operand(node) is None:
        return False
    products = _products(node, kinds)
    return products is not None and len(products) == 1


def _products(node: Node, kinds: Mapping[Node, Kind]) -> set[Node] | None:
    """Those that read ``node``; None where anything else does."""
    found: set[Node] = set()
    for user in node.users:
        if _is_large_product_of(user, node, kinds):
            found.add(user)
            continue
        leads_on = name_of(user) in VIEWS or masked_operand(user) is not None
        further = _products(user, kinds) if leads_on else None
        if further is None:
            return None
        found |= further
    return found


def _is_large_product_of(user: Node, factor: Node, kinds: Mapping[Node, Kind]) -> bool:
    return (
        kinds[user] is Kind.PRODUCT
        and name_of(user) in PRODUCTS
        and factor in user.args[-2:]
        and factor not in user.args[:-2]
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
        if not isinstance(own, Node) or not isinstance(other, Node) or is_constant(own):
            continue
        if name == "mul" and _is_mask(other):
            return own
        if name == "add" and is_constant(other) and masked_operand(own) is not None:
            return own
    return None


def _of_where(node: Node) -> Node | None:
    condition, *values = (argument(node, name) for name in ("condition", "self", "other"))
    if not isinstance(condition, Node) or not _is_mask(condition):
        return None
    kept = [v for v in values if isinstance(v, Node) and not is_constant(v)]
    zeros = [v for v in values if isinstance(v, Node) and _is_zero(v)]
    return kept[0] if len(kept) == 1 and len(zeros) == 1 else None


def _is_zero(node: Node) -> bool:
    name = name_of(node)
    filled = [a for a in node.args if isinstance(a, int | float) and not isinstance(a, bool)]
    return name in ZEROS or (name in FILLED and filled == [0])


def is_constant(node: Node) -> bool:
    """Whether ``node`` is made of few operators and no tensor that is given."""
    return _made_of(node) is not None


def _is_mask(node: Node) -> bool:
    """Whether ``node`` is a constant that tells places apart by comparing them."""
    names = {name_of(n) for n in _made_of(node) or ()}
    return not names.isdisjoint(PLACES) and not names.isdisjoint(COMPARISONS)


def _made_of(node: Node) -> set[Node] | None:
    """The node and all before it; None where a tensor that is given is among them, or they are many."""
    found, waiting = {node}, [node]
    while waiting:
        last = waiting.pop()
        if last.op != "call_function" or len(found) > MOST_OPERATORS:
            return None
        waiting += [n for n in last.all_input_nodes if n not in found]
        found |= set(last.all_input_nodes)
    return found


def leaves_earlier_keys(mask: Node, queries: int, keys: int) -> bool:
    """Whether a constant, added to scores [..., queries, keys], is 0 for keys up to the query and minus infinity for
    those beyond."""
    if name_of(mask) != "where" or tuple(mask.meta["val"].shape[-2:]) != (queries, keys):
        return False
    if mask.meta["val"].numel() != queries * keys:
        return False
    condition, *values = (argument(mask, name) for name in ("condition", "self", "other"))
    filled = [value_of(v) for v in values]
    seen = _holds_for_keys(condition, queries, keys)
    return seen is not None and filled == [0.0, MINUS_INFINITY][:: 1 if seen else -1]


def says_of_keys(condition: Node, queries: int, keys: int) -> bool | None:
    """True where a constant [..., queries, keys] holds for keys up to the query, False where for those beyond, else
    None."""
    value = condition.meta["val"]
    whole = tuple(value.shape[-2:]) == (queries, keys) and value.numel() == queries * keys
    return _holds_for_keys(condition, queries, keys) if whole and is_constant(condition) else None


def _holds_for_keys(condition: Node, queries: int, keys: int) -> bool | None:
    name = name_of(condition)
    if name in VIEWS_OF_ALL:
        return _holds_for_keys(condition.all_input_nodes[0], queries, keys)
    if name in ("logical_not", "bitwise_not"):
        found = _holds_for_keys(condition.args[0], queries, keys)  # type: ignore[arg-type]
        return None if found is None else not found
    if name == "logical_and":
        others = [n for n in condition.args if not _is_true(n)]
        return _holds_for_keys(others[0], queries, keys) if len(others) == 1 else None  # type: ignore[arg-type]
    if name in ("eq", "ne", "convert_element_type"):
        return _holds_of_numbers(condition, queries, keys)
    said = {("le", 0): True, ("lt", 1): True, ("gt", 0): False, ("ge", 1): False}
    found = said.get((name, condition.args[1])) if len(condition.args) == 2 else None  # type: ignore[arg-type]
    distance = condition.args[0] if found is not None else None
    if name_of(distance) != "sub" or len(distance.args) != 2 or distance.kwargs:  # type: ignore[union-attr]
        return None
    key, query = distance.args  # type: ignore[union-attr]
    right = _are_places(key, (1, keys)) and _are_places(query, (queries, 1))
    return found if right else None


def _holds_of_numbers(condition: Node, queries: int, keys: int) -> bool | None:
    """As `_holds_for_keys`, of numbers that are 0 or not, such as a triangle of ones."""
    numbers, *other = condition.args
    to_bool = name_of(condition) == "convert_element_type" and other == [torch.bool]
    if name_of(numbers) != "where" or not (to_bool or other == [0]):
        return None
    choice, *values = (argument(numbers, name) for name in ("condition", "self", "other"))  # type: ignore[arg-type]
    filled = [value_of(v) for v in values]
    if None in filled or bool(filled[0]) is bool(filled[1]):
        return None
    found = _holds_for_keys(choice, queries, keys)
    turned = (name_of(condition) == "eq") is bool(filled[0])
    return found if found is None else found is not turned


def value_of(node: object) -> object:
    """The number that a constant is filled with, None where that is something else."""
    if not isinstance(node, Node):
        return None
    named = {"full": "fill_value", "scalar_tensor": "s"}.get(name_of(node))
    return None if named is None else argument(node, named)


def _is_true(node: object) -> bool:
    return name_of(node) == "full" and argument(node, "fill_value") is True  # type: ignore[arg-type]


def _are_places(node: object, shape: tuple[int, int]) -> bool:
    """Whether a node counts from 0 along the longer side of a matrix."""
    if not isinstance(node, Node) or tuple(node.meta["val"].shape[-2:]) != shape:
        return False
    if node.meta["val"].numel() != max(shape):
        return False
    places = unviewed(node)
    if name_of(places) != "iota" or places.meta["val"].numel() != max(shape):
        return False
    return (argument(places, "start"), argument(places, "step")) == (0, 1)
