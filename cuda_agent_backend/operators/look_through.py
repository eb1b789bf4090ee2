"""What stands between the products of an attention that is written out, and changes no more than scale, shape or dtype.

A `Chain` follows a value upwards through copies, views, casts and factors, and keeps what it passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    dtype_of,
    is_tensor,
    is_view,
    name_of,
    number,
    shape_of,
)
from cuda_agent_backend.graph.strides import (
    Steps,
    moved,
    moves,
    steps_of,
)
from cuda_agent_backend.operators.strided_matrices import (
    Matrices,
    is_readable,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


MOST = float(1 << 30)
"""That is multiplied by: an operand of up to 2^60 stays a number."""


@dataclass
class Chain:
    """What is looked through. ``ours``: whether a node may be taken in with what follows it. ``device``: of all.
    ``dtype``: of the products."""

    ours: Callable[[Node], bool]
    device: torch.device
    dtype: torch.dtype
    inner: set[Node] = field(default_factory=set)
    scale: float = 1.0
    cap: float | None = None

    def product(self, node: Node) -> Node:
        """What scores are a multiple of, or of its hyperbolic tangent: then ``cap`` is what that is multiplied by."""
        node = self.through(node)
        if name_of(node) == "tanh":
            self.cap, self.scale = self.scale, 1.0
            self.inner.add(node)
            node = self.through(node.all_input_nodes[0])
        return node

    def through(self, node: Node) -> Node:
        """What a node is a multiple of, elements in their order."""
        while (read := self.multiple_of(node)) is not None:
            self.scale *= factor_of(node) or 1.0
            self.inner.add(node)
            node = read
        return node

    def uncast(self, node: Node) -> Node:
        """What a node is, in another dtype."""
        passed = self.casts_to(node)
        self.inner |= set(passed)
        return passed[-1].all_input_nodes[0] if passed else node

    def casts_to(self, node: Node) -> list[Node]:
        """The last changes of the dtype that make a node, the last one first."""
        found = []
        while self.casts(node):
            found.append(node)
            node = node.all_input_nodes[0]
        return found

    def multiple_of(self, node: Node) -> Node | None:
        """What a node is a view or a multiple of, elements in their order."""
        return node.all_input_nodes[0] if self.casts(node) else multiple_of(node)

    def casts(self, node: Node) -> bool:
        """Whether a node has what products in half precision are made of, or make, in float32, or the other way."""
        if self.dtype == torch.float32 or name_of(node) != "convert_element_type":
            return False
        read = node.all_input_nodes[0]
        both = is_tensor(node) and is_tensor(read)
        return both and {dtype_of(node), dtype_of(read)} == {self.dtype, torch.float32}

    def multiplies(self, node: Node) -> bool:
        """Whether a node is a product of batches, as the other one is."""
        return multiplies(node) and dtype_of(node) == self.dtype

    def source(self, node: Node) -> Matrices | None:
        """What an operand of a product is copied or scaled from, and how it lies there."""
        passed = []
        while self.ours(node) and (moves(node) or factor_of(node) is not None):
            self.scale *= factor_of(node) or 1.0
            passed.append(node)
            node = node.all_input_nodes[0]
        self.inner |= set(passed)
        value = node.meta["val"]
        if not is_readable(value, self.device):
            return None
        steps: Steps | None = steps_of(value.shape, value.stride())
        for step in reversed(passed):
            if steps is not None and moves(step):
                steps = moved(steps, step)
        return None if steps is None else Matrices(node, *steps)


def multiplies(node: Node) -> bool:
    """Whether a node is a product of batches, in a dtype that kernels take."""
    plain = node.target is torch.ops.aten.bmm.default and len(node.args) == 2 and not node.kwargs
    return plain and is_tensor(node) and dtype_of(node) in DTYPES


def multiple_of(node: Node) -> Node | None:
    """What a node is a view or a multiple of, elements in their order."""
    read = node.args[0] if node.args else None
    if not isinstance(read, Node) or not is_tensor(node):
        return None
    same = name_of(node) == "expand" and shape_of(node) == shape_of(read)
    return read if same or is_view(node) or factor_of(node) is not None else None


def factor_of(node: Node) -> float | None:
    """The positive number that a node multiplies its one operand by."""
    if name_of(node) not in ("mul", "div") or len(node.args) != 2 or node.kwargs:
        return None
    read, factor = node.args[0], number(node.args[1])
    if factor is None or not 1 / MOST < factor < MOST or not isinstance(read, Node):
        return None
    if dtype_of(node) != dtype_of(read):
        return None
    return factor if name_of(node) == "mul" else 1 / factor
