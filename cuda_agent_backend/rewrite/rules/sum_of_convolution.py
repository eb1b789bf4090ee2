"""The sum over all positions of a convolution is a small product of its weights with sums of boxes of its input.

In one dimension y[q] = sum over j of w[j] x[s q + d j]. So the sum over q is the sum over j of w[j] S[j], where the box
S[j] = x[d j] + x[s + d j] + x[2 s + d j] + ... for each tap. Boxes are summed along one dimension after the other.

As in `sum_of_product`, infinite weights are multiplied with sums of infinities of the box's signs, padding included,
which a convolution multiplies like any zeros; and boxes are added up in double.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import Editor, argument, aten, is_float, name_of, shape_of
from cuda_agent_backend.rewrite.linear import move_sums
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.rules.sum_of_product import weighted
from cuda_agent_backend.rewrite.terms import Added, Dims, Plain, Scaled, Term

PAYS = 4
"""Multiplications in the convolution for each addition in boxes, from which on these are less work."""


@dataclass(frozen=True)
class Axis:
    """One dimension of positions: their number, the taps of a filter, and elements between neighbours of either."""

    positions: int
    taps: int
    step: int
    spread: int
    padding: int

    @property
    def box(self) -> int:
        """Elements from the first of a box to its last."""
        return (self.positions - 1) * self.step + 1

    @property
    def reach(self) -> int:
        """Elements of the padded input from the first that is read to the last."""
        return self.box + (self.taps - 1) * self.spread


@dataclass(frozen=True)
class SummedConvolution:
    """A convolution summed over ``dims`` of the result, all positions among them."""

    source: Node
    weight: Node
    groups: int
    axes: tuple[Axis, ...]
    dims: Dims
    pays: bool = True

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        channels = shape_of(self.weight)[0] // self.groups
        weight = at.shaped(self.weight, (1, self.groups, channels, self._inner))
        padded = self._padded(at)
        sums = self._boxes(at, at.cast(padded, torch.float64))
        signs = self._boxes(at, at.call(aten.mul.Tensor, padded, math.inf))
        terms = weighted(at, weight, sums, signs)
        total = at.call(aten.sum.dim_IntList, terms, [-1])
        total = at.shaped(total, (shape_of(total)[0], self.groups * channels))
        rest = [d for d in self.dims if d < 2]
        return at.cast(at.call(aten.sum.dim_IntList, total, rest) if rest else total, wide)

    @property
    def _inner(self) -> int:
        """Weights of one output channel."""
        return math.prod(shape_of(self.weight)[1:])

    def _padded(self, at: Editor) -> Node:
        edges = [edge for axis in reversed(self.axes) for edge in 2 * [axis.padding]]
        return (
            at.call(aten.constant_pad_nd.default, self.source, edges) if any(edges) else self.source
        )

    def _boxes(self, at: Editor, x: Node) -> Node:
        """The sums of all boxes, as what meets the weights of a group: [images, groups, 1, weights]."""
        turned = _channels_last(self.source)
        rank = len(shape_of(x))
        if turned:
            x = at.call(aten.permute.default, x, [0, *range(2, rank), 1])
        for d, axis in reversed(list(enumerate(self.axes, 1 if turned else 2))):
            x = at.call(aten.slice.Tensor, x, d, 0, axis.reach)
            x = at.call(aten.unfold.default, x, d, axis.box, axis.spread)
            x = at.call(aten.slice.Tensor, x, -1, 0, axis.box, axis.step)
            x = at.call(aten.sum.dim_IntList, x, [-1])
        if turned:
            x = at.call(aten.permute.default, x, [0, rank - 1, *range(1, rank - 1)])
        return at.shaped(x, (shape_of(x)[0], self.groups, 1, self._inner))


def _channels_last(source: Node) -> bool:
    """Whether channels lie next to each other: what is summed is then read in the order in which it lies."""
    return bool(source.meta["val"].stride(1) == 1 < shape_of(source)[1])


def summed_convolution(node: Node, dims: Dims) -> Term | None:
    """The leaf: a convolution that is not transposed, whose positions are summed."""
    if name_of(node) != "convolution" or argument(node, "transposed"):
        return None
    source, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
    rank = len(shape_of(node))
    operands = is_float(source) and is_float(weight) and len(shape_of(source)) == rank
    if not operands or not set(range(2, rank)) <= set(dims):
        return None
    axes = _axes(node, weight)
    if not _is_less(node, source, weight, axes):
        return None
    made = SummedConvolution(source, weight, argument(node, "groups"), axes, dims)
    if bias is None:
        return made
    terms = math.prod(shape_of(node)[d] for d in dims if d != 1)
    return Added(made, Scaled(Plain(bias, (0,) if 1 in dims else ()), terms))


def _axes(node: Node, weight: Node) -> tuple[Axis, ...]:
    positions, taps = shape_of(node)[2:], shape_of(weight)[2:]
    given = (argument(node, name) for name in ("stride", "dilation", "padding"))
    each = (list(n) * len(taps) if len(n) == 1 else list(n) for n in given)
    return tuple(Axis(*own) for own in zip(positions, taps, *each, strict=True))


def _is_less(node: Node, source: Node, weight: Node, axes: tuple[Axis, ...]) -> bool:
    """Whether boxes, of which two kinds are summed, take fewer additions than the convolution multiplications."""
    images, channels = shape_of(source)[:2]
    others = math.prod(axis.reach for axis in axes[:-1])
    boxes = 2 * images * channels * others * axes[-1].taps * axes[-1].positions
    products = 2 * images * math.prod(shape_of(weight))
    multiplications = math.prod(shape_of(node)) * math.prod(shape_of(weight)[1:])
    return multiplications >= PAYS * (boxes + products)


def apply(graph: Graph) -> bool:
    return move_sums(graph, summed_convolution)


RULE = Rule("sum_of_convolution", apply, exact=False)
