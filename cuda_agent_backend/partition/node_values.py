"""Facts about the values of a graph's nodes: sizes, devices, results picked from several."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node


def is_overlapping(value: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory, as those of an expanded one do."""
    return any(
        type(step) is int and step == 0 and size != 1
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


def is_selection(node: Node) -> bool:
    """Whether a node picks one of several results."""
    return node.target is operator.getitem


def users_of(node: Node) -> list[Node]:
    """The users of a node, with those of its selections in place of the selections."""
    return [
        found for user in node.users for found in (user.users if is_selection(user) else (user,))
    ]


def is_symbolic(value: object) -> bool:
    """Whether a size, a step or a number of a node's value is not known while it is compiled."""
    if isinstance(value, torch.Tensor):
        return not all(type(n) is int for n in (*value.shape, *value.stride()))
    if isinstance(value, list | tuple):
        return any(is_symbolic(item) for item in value)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def device_of(node: Node) -> tuple[str, int]:
    """The kind and the number of the device that a node's value is on; ("none", 0) where it is no tensor."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        value = next((item for item in value if isinstance(item, torch.Tensor)), None)
    if not isinstance(value, torch.Tensor):
        return ("none", 0)
    return value.device.type, value.device.index or 0


def size_in_bytes(node: Node) -> int:
    """Bytes of distinct elements of a node's value; 0 where they are not known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or is_symbolic(value):
        return 0
    count = 1
    for size, step in zip(value.shape, value.stride(), strict=True):
        count *= size if step != 0 else 1
    return count * value.element_size()
