"""Gradients of convolutions: which results of `convolution_backward` are sums of products that sketches cover.

Eager computes them one after the other, each from two of the three operands. So a kernel may take the place of one of
them while the library's call goes on to compute the other (`only_needed`).
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import argument, is_tensor, shape_of

BACKWARD = torch.ops.aten.convolution_backward.default
OF_INPUT, OF_WEIGHT = 0, 1
"""The places of its results; the last one, of the bias, is a sum that Inductor writes by itself on cuda."""
MASK = "output_mask"
"""The argument of a backward operator that says which of its results are wanted."""


@dataclass(frozen=True)
class Convolution:
    """The convolution that a `convolution_backward` belongs to, each list with a number for each dimension."""

    gradient: Node
    image: Node
    weight: Node
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Whose product is the number of multiplications of the convolution, and of each of its gradients."""
        places = self.image if self.transposed else self.gradient
        return (*shape_of(places), *shape_of(self.weight)[1:])


def is_backward(node: Node) -> bool:
    """Whether a node is the backward of a convolution of fixed size in one to three dimensions."""
    if node.target != BACKWARD or not all(map(is_tensor, node.all_input_nodes)):
        return False
    return 3 <= len(shape_of(argument(node, "weight"))) <= 5


def is_gradient(node: Node) -> bool:
    """Whether a node picks a result of an `is_backward`."""
    if node.target is not operator.getitem:
        return False
    whole = node.args[0]
    return isinstance(whole, Node) and is_backward(whole)


def convolution_of(whole: Node) -> Convolution:
    """What an `is_backward` says of its convolution."""
    dims = len(shape_of(argument(whole, "weight"))) - 2
    return Convolution(
        gradient=argument(whole, "grad_output"),
        image=argument(whole, "input"),
        weight=argument(whole, "weight"),
        stride=each(argument(whole, "stride"), dims),
        padding=each(argument(whole, "padding"), dims),
        dilation=each(argument(whole, "dilation"), dims),
        transposed=argument(whole, "transposed"),
        output_padding=each(argument(whole, "output_padding"), dims),
        groups=argument(whole, "groups"),
    )


def is_sum_of_products(node: Node) -> bool:
    """Whether there are sketches for a result of an `is_backward`."""
    whole, place = node.args
    assert isinstance(whole, Node)
    if not is_tensor(node) or place not in (OF_INPUT, OF_WEIGHT):
        return False
    it = convolution_of(whole)
    if it.transposed and any(b >= s for b, s in zip(it.output_padding, it.stride, strict=True)):
        return False  # the windows of its gradient are more than the elements of its input
    outputs, channels = shape_of(it.weight)[0] // it.groups, shape_of(it.weight)[1]
    if it.groups > 1 and 1 in (outputs, channels):
        return False  # neither rows nor columns
    plain = all(s == 1 for s in it.stride) or all(d == 1 for d in it.dilation)
    return bool(place == OF_WEIGHT) or it.transposed or plain


def only_needed(graph: Graph) -> None:
    """Have each backward of a convolution compute no result that nothing reads, and take those out that are left with
    none."""
    for whole in graph.find_nodes(op="call_function", target=BACKWARD):
        for pick in list(whole.users):
            if pick.target is operator.getitem and not pick.users:
                graph.erase_node(pick)
        mask = needed(argument(whole, MASK), whole, whole.users)
        if not whole.users:
            graph.erase_node(whole)
        elif any(mask) and mask != argument(whole, MASK):
            _ask_for(whole, mask)


def needed(mask: Any, whole: Node, picks: Collection[Node]) -> list[bool]:
    """What of ``mask`` is left where of the results of ``whole`` only those are wanted that ``picks`` pick."""
    wanted = {n.args[1] for n in whole.users if n in picks and n.target is operator.getitem}
    return [bool(flag) and place in wanted for place, flag in enumerate(mask)]


def _ask_for(whole: Node, mask: list[bool]) -> None:
    if MASK in whole.kwargs:
        whole.update_kwarg(MASK, mask)
    else:
        schema: Any = whole.target
        place = [entry.name for entry in schema._schema.arguments].index(MASK)
        whole.update_arg(place, mask)
    results = whole.meta["val"]
    whole.meta["val"] = tuple(r if m else None for r, m in zip(results, mask, strict=True))


def each(value: Any, dims: int) -> list[int]:
    """A number for each dimension, where one may stand for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    return [int(n) for n in (numbers * dims if len(numbers) == 1 else numbers)]
