"""Diagonal matrices as post-grad graphs have them: a vector where two running numbers are equal, zero elsewhere."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    argument,
    is_float,
    is_tensor,
    is_view,
    is_zero,
    name_of,
    shape_of,
    unviewed,
)


def diagonal_of(node: Any) -> Node | None:
    """The diagonal of a matrix (or of a batch of them) that is zero elsewhere: a value of shape [..., 1, n]."""
    if not is_float(node) or len(shape_of(node)) < 2 or shape_of(node)[-1] != shape_of(node)[-2]:
        return None
    if name_of(node) == "permute":
        rank = len(shape_of(node))
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        same = [d % rank for d in argument(node, "dims")] in (swapped, list(range(rank)))
        return diagonal_of(argument(node, "self")) if same else None
    if name_of(node) != "where" or not is_zero(argument(node, "other")):
        return None
    value, shape = argument(node, "self"), shape_of(node)
    if not is_float(value) or not _is_identity(argument(node, "condition"), shape[-1]):
        return None
    return value if shape_of(value) == (*shape[:-2], 1, shape[-1]) else None


def identity_masks(node: Any) -> Node | None:
    """What a mask by the identity takes the diagonal of: a matrix (or a batch of them) that is zero elsewhere; None of
    anything else. It may have fewer dimensions."""
    if name_of(node) != "where" or not is_float(node) or len(shape_of(node)) < 2:
        return None
    value, size = argument(node, "self"), shape_of(node)[-1]
    if not is_zero(argument(node, "other")) or size != shape_of(node)[-2] or not is_float(value):
        return None
    found: Node | None = value if _is_identity(argument(node, "condition"), size) else None
    return found


def _is_identity(node: Any, size: int) -> bool:
    """Whether a condition holds where row and column are equal."""
    while is_view(node) and shape_of(node)[-2:] == (size, size):
        node = node.args[0]
    if name_of(node) != "eq" or not is_tensor(node) or shape_of(node) != (size, size):
        return False
    sides = [argument(node, "self"), argument(node, "other")]
    shapes = sorted(_right_aligned(side) for side in sides if _counts(side, size))
    return size > 1 and shapes == [(1, size), (size, 1)]


def _right_aligned(node: Node) -> tuple[int, ...]:
    shape = shape_of(node)
    return (1, *shape) if len(shape) == 1 else shape


def _counts(node: Any, size: int) -> bool:
    """Whether a node holds 0, 1, 2 and so on, along one dimension."""
    if not is_tensor(node):
        return False
    source = unviewed(node)
    if name_of(source) != "iota" or shape_of(source) != (size,):
        return False
    return (argument(source, "start"), argument(source, "step")) == (0, 1)
