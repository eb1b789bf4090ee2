"""Reading and making nodes of a post-grad graph whose nodes carry fake values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten, prims = torch.ops.aten, torch.ops.prims

VIEWS = frozenset({"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze"})
"""Operators that keep the order of elements and change the shape alone."""


def name_of(node: object) -> str:
    """ "sum" of a call of aten.sum.dim_IntList; "" of anything that is no call of an ATen or prims operator."""
    if not isinstance(node, Node) or not isinstance(node.target, torch._ops.OpOverload):
        return ""
    if node.target.namespace not in ("aten", "prims"):
        return ""
    return node.target._schema.name.partition("::")[2]


def is_tensor(node: object) -> bool:
    """Whether a node's value is one tensor of fixed size."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and all(type(n) is int for n in value.shape)


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a node that `is_tensor`."""
    return tuple(node.meta["val"].shape)


def dtype_of(node: Node) -> torch.dtype:
    """The dtype of a node that `is_tensor`."""
    found: torch.dtype = node.meta["val"].dtype
    return found


def wide_of(dtype: torch.dtype) -> torch.dtype:
    """What numbers of a floating-point dtype are worked with: single precision at least."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_float(node: object) -> bool:
    """Whether a node's value is one floating-point tensor of fixed size."""
    return isinstance(node, Node) and is_tensor(node) and dtype_of(node).is_floating_point


def argument(node: Node, name: str, default: Any = None) -> Any:
    """The argument of that name in the operator's schema, the schema's default where it is not given."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for position, entry in enumerate(node.target._schema.arguments):
        if entry.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            if position < len(node.args):
                return node.args[position]
            return entry.default_value if entry.has_default_value() else default
    return default


def number(value: object) -> float | None:
    """A finite number given as an argument; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dimensions that a reduction takes away, counted from the front of its operand, in order."""
    rank = len(shape_of(argument(node, "self")))
    dims = argument(node, "dim")
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({d % max(rank, 1) for d in listed if rank}))


def without(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """The shape with these dimensions taken away."""
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def is_view(node: Any) -> bool:
    """Whether a node has the elements of its operand in their order, in another shape."""
    if name_of(node) not in VIEWS or not is_tensor(node) or not is_tensor(node.args[0]):
        return False
    return dtype_of(node) == dtype_of(node.args[0])


def unviewed(node: Any) -> Any:
    """What a chain of changes of the shape alone starts from."""
    while is_view(node):
        node = node.args[0]
    return node


def is_zero(node: Any) -> bool:
    """Whether a node is a constant 0."""
    value = {"full": "fill_value", "scalar_tensor": "s"}.get(name_of(node))
    return value is not None and argument(node, value) == 0


def calls(graph: Graph, *names: str) -> list[Node]:
    """The calls of operators of these names whose value is one tensor, in order."""
    return [node for node in graph.nodes if name_of(node) in names and is_tensor(node)]


def replace(node: Node, by: Node) -> None:
    """Put a value in the place of an equal one. What nothing reads any more is left to `eliminate_dead_code`."""
    assert (shape_of(node), dtype_of(node)) == (shape_of(by), dtype_of(by)), (node, by)
    node.replace_all_uses_with(by)


@dataclass(frozen=True)
class Editor:
    """Makes calls in front of a node, with their fake values."""

    graph: Graph
    before: Node

    def call(self, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Node:
        """A call; its operands are nodes or plain arguments."""
        values, named = map_arg((args, kwargs), lambda node: node.meta["val"])
        with next(iter(self.graph.nodes)).meta["val"].fake_mode:
            value = target(*values, **named)
        with self.graph.inserting_before(self.before):
            made = self.graph.call_function(target, args, kwargs)
        made.meta["val"] = value
        return made

    def constant(self, value: float, dtype: torch.dtype) -> Node:
        """A scalar tensor."""
        device = next(iter(self.graph.nodes)).meta["val"].device
        return self.call(aten.full.default, [], value, dtype=dtype, device=device)

    def shaped(self, node: Node, shape: Sequence[int]) -> Node:
        """In another shape, elements in the same order."""
        same = shape_of(node) == tuple(shape)
        return node if same else self.call(aten.reshape.default, node, list(shape))

    def cast(self, node: Node, dtype: torch.dtype) -> Node:
        """In another dtype."""
        if dtype_of(node) == dtype:
            return node
        return self.call(prims.convert_element_type.default, node, dtype)
