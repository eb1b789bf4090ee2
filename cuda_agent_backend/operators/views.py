"""Operators that move values and make none: views, copies and padding with zeros."""

from __future__ import annotations

import torch
from torch.fx import Node


def viewable(shape: tuple[int, ...], stride: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor can be viewed with another shape without a copy."""
    sizes = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    targets = [n for n in wanted if n != 1]
    if not all(n for n in shape):
        return True
    chunks: list[int] = []
    for position, (size, step) in enumerate(sizes):
        if position and sizes[position - 1][1] == size * step:
            chunks[-1] *= size
        else:
            chunks.append(size)
    for chunk in chunks:
        while chunk > 1 and targets and chunk % targets[0] == 0:
            chunk //= targets.pop(0)
        if chunk != 1:
            return False
    return True


def is_view(node: Node) -> bool:
    if "reshape" not in str(node.target):
        return True
    source = node.args[0]
    before = source.meta.get("val") if isinstance(source, Node) else None
    after = node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    numbers = (*before.shape, *before.stride(), *after.shape)
    if not all(type(number) is int for number in numbers):
        return True
    return viewable(tuple(before.shape), tuple(before.stride()), tuple(after.shape))


def is_copy(node: Node) -> bool:
    """Whether a node moves values of its one operand and makes none: a copy, or a change of shape that takes one."""
    return node.target in (torch.ops.aten.clone.default, torch.ops.aten.reshape.default)


def is_zero_padding(node: Node) -> bool:
    """Whether a node puts zeros around its operand, or cuts it off."""
    if node.target is not torch.ops.aten.constant_pad_nd.default:
        return False
    return not (node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0))
