"""Convolutions as sums of products over windows of their padded input, all of which exist in loops only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.convolution_grad import each

aten = torch.ops.aten
ABSENT = -0.0
"""Padding that is no term of a sum: a convolution multiplies the zeros beside an image, even with infinities; a
transposed one has nothing there. As a number it is a zero; `gemm` knows it by its sign."""

NARROWEST = 16
"""Columns of the narrowest tile of a sum of products."""


def call(graph: Graph, target: torch._ops.OpOverload, *args: object) -> Node:
    """A node for a call, with its metadata."""
    made = graph.call_function(target, args)  # type: ignore[arg-type]
    made.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args))
    return made


def convolution(graph: Graph, node: Node) -> Node:
    """What computes the same as ``node``, a convolution that `operators.is_convolution` takes."""
    result = _in_its_direction(node)(graph, node)
    bias = node.args[2]
    if not isinstance(bias, Node):
        return result
    dims = result.meta["val"].dim() - 2
    shown = call(graph, aten.view.default, bias, [-1, *[1] * dims])
    return call(graph, aten.add.Tensor, result, shown)


def _in_its_direction(node: Node) -> Callable[[Graph, Node], Node]:
    if not node.args[6]:
        return _direct
    spread = each(node.args[5], node.meta["val"].dim() - 2)
    return _transposed if all(d == 1 for d in spread) else _turned


def _turned(graph: Graph, node: Node) -> Node:
    """A transposed convolution without steps, dilated: a convolution with the filter turned round.

    In one dimension, with dilation d and padding p, output q is the sum over j of x[q + p - d j] w[j].
    """
    x, weight, _, _, padding, dilation, _, _, groups = node.args
    assert isinstance(x, Node) and isinstance(weight, Node) and isinstance(groups, int)
    wanted = node.meta["val"].shape[2:]
    n, channels, *lengths = x.meta["val"].shape
    _, outputs, *size = weight.meta["val"].shape
    dims = len(size)
    edges, spread = each(padding, dims), each(dilation, dims)
    reach = [d * (k - 1) for d, k in zip(spread, size, strict=True)]
    sides = [
        (r - p, w + p - length)
        for r, p, w, length in zip(reach, edges, wanted, lengths, strict=True)
    ]
    x = padded(graph, x, sides, ABSENT)
    x = windows_of(graph, x, size, [1] * dims, spread)
    windows = call(graph, aten.view.default, x, [n, groups, 1, channels // groups, *wanted, *size])
    weight = call(graph, aten.view.default, weight, [groups, channels // groups, outputs, *size])
    turned = call(graph, torch.ops.prims.rev.default, weight, list(range(3, 3 + dims)))
    order = [0, 2, 1, *range(3, 3 + dims)]
    weight = call(graph, aten.permute.default, turned, order)
    for d in range(dims):
        weight = call(graph, aten.unsqueeze.default, weight, 3 + d)
    terms = call(graph, aten.mul.Tensor, windows, weight)
    inner = [3, *range(4 + dims, 4 + 2 * dims)]
    result = call(graph, aten.sum.dim_IntList, terms, inner)
    return call(graph, aten.view.default, result, list(node.meta["val"].shape))


def _direct(graph: Graph, node: Node) -> Node:
    x, weight, _, stride, padding, dilation, _, _, groups = node.args
    assert isinstance(x, Node) and isinstance(weight, Node) and isinstance(groups, int)
    outputs, channels, *size = weight.meta["val"].shape
    dims = len(size)
    steps, edges, spread = (each(v, dims) for v in (stride, padding, dilation))
    x = padded(graph, x, [(edge, edge) for edge in edges])
    x = windows_of(graph, x, size, steps, spread)
    n, _, *rest = x.meta["val"].shape
    windows = call(graph, aten.view.default, x, [n, groups, 1, channels, *rest])
    weights = [groups, outputs // groups, channels, *[1] * dims, *size]
    terms = call(graph, aten.mul.Tensor, windows, call(graph, aten.view.default, weight, weights))
    inner = [3, *range(4 + dims, 4 + 2 * dims)]
    result = call(graph, aten.sum.dim_IntList, terms, inner)
    return call(graph, aten.view.default, result, list(node.meta["val"].shape))


def _transposed(graph: Graph, node: Node) -> Node:
    """A convolution by windows of x, whose channels are those of the output times the s phases r of the stride.

    In one dimension, with stride s and padding p, output s * q + r is the sum over j of x[q - j] w[s * j + r + p]. Of
    which j there are weights depends on r; the sum is over those of any phase. With shifted phases it is that of
    x[q + r - j] w[2 * j + p - r], where all phases have the same j: fewer terms, but a sum of products for each phase.
    """
    x, weight, _, stride, padding, _, _, _, groups = node.args
    assert isinstance(x, Node) and isinstance(weight, Node) and isinstance(groups, int)
    wanted = node.meta["val"].shape[2:]
    n, channels, *lengths = x.meta["val"].shape
    _, outputs, *size = weight.meta["val"].shape
    dims = len(size)
    steps, edges, ones = each(stride, dims), each(padding, dims), [1] * dims
    shifts = _shifted(outputs, size, steps, edges)
    shown = [1 + shift for shift in shifts]  # phases that x sees
    first = [-((s - 1 - f + p) // s) for s, p, f in zip(steps, edges, shifts, strict=True)]
    last = [(k - 1 - p + f) // s for k, s, p, f in zip(size, steps, edges, shifts, strict=True)]
    taps = [b - a + 1 for a, b in zip(first, last, strict=True)]
    parts = [-(-w // s) for w, s in zip(wanted, steps, strict=True)]

    behind = [parts[d] + shifts[d] - first[d] - lengths[d] for d in range(dims)]
    x = padded(graph, x, list(zip(last, behind, strict=True)), ABSENT)
    for sizes in (shown, taps):
        for d in range(dims):
            x = call(graph, aten.unfold.default, x, 2 + d, sizes[d], 1)
    shape = [n, groups, 1, channels // groups, *parts, *shown, *taps]
    windows = call(graph, aten.view.default, x, shape)
    turns = _by_turns(list(range(4, 4 + dims)), list(range(4 + dims, 4 + 2 * dims)))
    order = [*range(4), *turns, *range(4 + 2 * dims, 4 + 3 * dims)]
    windows = call(graph, aten.permute.default, windows, order)

    before = [-steps[d] * first[d] - edges[d] + shifts[d] for d in range(dims)]
    after = [steps[d] * taps[d] - size[d] - before[d] for d in range(dims)]
    weight = padded(graph, weight, list(zip(before, after, strict=True)), ABSENT)
    shape = [groups, channels // groups, outputs, *_by_turns(taps, steps)]
    weight = call(graph, aten.view.default, weight, shape)
    reverse = [3 + 2 * d for d in range(dims)] + [4 + 2 * d for d in range(dims) if shifts[d]]
    weight = call(graph, torch.ops.prims.rev.default, weight, reverse)
    phases, places = ([o + 2 * d for d in range(dims)] for o in (4, 3))
    weight = call(graph, aten.permute.default, weight, [0, 2, 1, *phases, *places])
    shape = [1, groups, outputs, channels // groups, *_by_turns(ones, steps), *taps]
    terms = call(graph, aten.mul.Tensor, windows, call(graph, aten.view.default, weight, shape))

    inner = [3, *range(4 + 2 * dims, 4 + 3 * dims)]
    result = call(graph, aten.sum.dim_IntList, terms, inner)
    whole = [p * s for p, s in zip(parts, steps, strict=True)]
    result = call(graph, aten.view.default, result, [n, groups * outputs, *whole])
    if whole == list(wanted):
        return result
    for d in range(dims):
        result = call(graph, aten.slice.Tensor, result, 2 + d, 0, wanted[d])
    return call(graph, aten.clone.default, result)


def _shifted(outputs: int, size: list[int], steps: list[int], edges: list[int]) -> list[int]:
    """For each dimension 1 where phases of x that are shifted make sums so much shorter that it pays, else 0."""
    together = [
        (s - 1 + p) // s + (k - 1 - p) // s + 1 for k, s, p in zip(size, steps, edges, strict=True)
    ]
    alone = [-(-k // s) for k, s in zip(size, steps, strict=True)]
    shifts = [
        int(s == 2 and p % 2 == 1 and a < t)
        for s, p, a, t in zip(steps, edges, alone, together, strict=True)
    ]
    phases = 2 ** sum(shifts)
    others = outputs * math.prod(steps) // phases
    shorter = math.prod(a if f else t for a, t, f in zip(alone, together, shifts, strict=True))
    pays = phases * _whole(others) * shorter < _whole(others * phases) * math.prod(together)
    return shifts if pays else [0] * len(size)


def _whole(columns: int) -> int:
    """With those that fill the narrowest tile."""
    return -(-columns // NARROWEST) * NARROWEST


def windows_of(
    graph: Graph, x: Node, size: Sequence[int], steps: Sequence[int], spread: Sequence[int]
) -> Node:
    """``x`` [n, channels, ...] with the taps of each window behind its places, as a view."""
    for d in range(len(size)):
        x = call(graph, aten.unfold.default, x, 2 + d, spread[d] * (size[d] - 1) + 1, steps[d])
        if spread[d] > 1:
            last = x.meta["val"].dim() - 1
            x = call(graph, aten.slice.Tensor, x, last, 0, 1 << 62, spread[d])
    return x


def padded(graph: Graph, x: Node, sides: list[tuple[int, int]], value: float = 0.0) -> Node:
    """``x`` with a value before and after in its last dimensions; negative sides cut off."""
    if not any(side for pair in sides for side in pair):
        return x
    flat = [side for pair in reversed(sides) for side in pair]
    return call(graph, aten.constant_pad_nd.default, x, flat, value)


def _by_turns(first: list[int], second: list[int]) -> list[int]:
    return [size for pair in zip(first, second, strict=True) for size in pair]
