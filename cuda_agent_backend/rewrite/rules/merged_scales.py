"""Multiplications and divisions by constants, one after another, are one: x * a / b = x (a / b), x / a / b = x / (ab).

It holds for finite constants other than 0, whose product must be a normal number of the dtype: else x would vanish
where it did not before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    aten,
    calls,
    dtype_of,
    is_float,
    is_view,
    name_of,
    number,
    replace,
    shape_of,
)
from cuda_agent_backend.rewrite.rule import Rule

SCALES = (aten.mul.Tensor, aten.div.Tensor, aten.neg.default)


@dataclass(frozen=True)
class Chain:
    """``start * times / over``, what ``count`` nodes after one another compute, in some shape."""

    start: Node
    times: float = 1.0
    over: float = 1.0
    count: int = 0

    @property
    def factor(self) -> float:
        return self.times / self.over


def factor_of(node: Node) -> float | None:
    """The constant that a node multiplies with, 1 over the one that it divides by; None for anything else."""
    found = _one(node)
    return None if found is None else found.factor


def _one(node: Node) -> Chain | None:
    if not is_float(node) or node.target not in SCALES:
        return None
    source = argument(node, "self")
    if dtype_of(source) != dtype_of(node):
        return None
    if name_of(node) == "neg":
        return Chain(source, -1.0, 1.0, 1)
    value = number(argument(node, "other"))
    if not value:
        return None
    return Chain(source, value, 1.0, 1) if name_of(node) == "mul" else Chain(source, 1.0, value, 1)


def chain_of(node: Node) -> Chain:
    """The chain that ends with a node; changes of the shape may lie within."""
    last = _one(node)
    if last is None:
        return Chain(node)
    source = last.start
    while len(source.users) == 1 and is_view(source):
        source = argument(source, "self")
    before = chain_of(source) if len(source.users) == 1 else Chain(source)
    if not before.count:
        return last
    times, over = before.times * last.times, before.over * last.over
    return Chain(before.start, times, over, before.count + 1)


def is_normal(factor: float, dtype: torch.dtype) -> bool:
    """Whether a factor is neither too small nor too large for a dtype."""
    limits = torch.finfo(dtype)
    return bool(limits.tiny <= abs(factor) <= limits.max)


def _scaled(at: Editor, chain: Chain) -> Node:
    if chain.factor == 1:
        return chain.start
    if chain.times == 1:
        return at.call(aten.div.Tensor, chain.start, chain.over)
    return at.call(aten.mul.Tensor, chain.start, chain.factor)


def apply(graph: Graph) -> bool:
    changed = False
    for node in reversed(calls(graph, "mul", "div", "neg")):
        chain = chain_of(node)
        if chain.count < 2 or not node.users:  # a chain of two is of floating-point numbers
            continue
        numbers = (chain.times, chain.over, chain.factor)
        if not all(is_normal(value, dtype_of(node)) for value in numbers):
            continue
        at = Editor(graph, node)
        replace(node, at.shaped(_scaled(at, chain), shape_of(node)))
        changed = True
    return changed


RULE = Rule("merged_scales", apply, exact=False)
