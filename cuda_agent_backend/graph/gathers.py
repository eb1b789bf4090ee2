"""Operators that Inductor leaves to ATen or lowers to atomics, though each result is a sum over known places: bags of
one length, sums of overlapping windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import argument, is_float, is_tensor, name_of, shape_of

aten, prims = torch.ops.aten, torch.ops.prims
BAGS = (aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
"""The second one is what a table becomes that could be trained, also where nothing is."""
PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
MOST_TERMS = 64
PLACES = (torch.int32, torch.int64)
"""Windows over one element up to which their sum is written out."""


def bag_length(node: Node) -> int | None:
    """How many rows each bag of an embedding bag has, where all have as many; None of anything else.

    Weights of samples, padding, a last offset and empty bags are not covered.
    """
    if node.target not in BAGS:
        return None
    weight, indices, offsets = (argument(node, n) for n in ("weight", "indices", "offsets"))
    if not is_float(weight) or not is_tensor(indices) or name_of(offsets) != "iota":
        return None
    given = (argument(node, n) for n in ("per_sample_weights", "include_last_offset"))
    if any(given) or argument(node, "padding_idx") != -1 or len(shape_of(indices)) != 1:
        return None
    count, start, length = (argument(offsets, name) for name in ("length", "start", "step"))
    if any(type(n) is not int for n in (count, start, length)) or start != 0 or length < 1:
        return None
    return length if count * length == shape_of(indices)[0] else None


@dataclass(frozen=True)
class Steps:
    """An index tensor known in advance: ``base`` plus each coordinate times its step."""

    base: int
    steps: tuple[int, ...]

    def broadcast(self, dims: int) -> tuple[int, ...]:
        return (*(0,) * (dims - len(self.steps)), *self.steps)


@dataclass(frozen=True)
class Cover:
    """Windows over one dimension: element y is place ``y % stride + stride * j`` of window ``y // stride - j``.

    ``place`` and ``window`` are dimensions of the values after the leading ones; None where there is one window only.
    """

    place: int
    places: int
    window: int | None
    windows: int
    stride: int

    @property
    def terms(self) -> int:
        """Windows that may hold an element."""
        return ceil(self.places / self.stride)


@dataclass(frozen=True)
class OverlapAdd:
    """``self`` and the windows that lie over its last dimensions; ``leading`` dimensions are as those of the values."""

    leading: int
    dims: int
    covers: tuple[Cover, ...]


def overlap_add(node: Node) -> OverlapAdd | None:
    """The sum of overlapping windows that an accumulating index_put is, as folding makes it; None of anything else."""
    if node.target not in PUTS or argument(node, "accumulate") is not True:
        return None
    into, indices, values = (argument(node, n) for n in ("self", "indices", "values"))
    if not is_float(into) or not is_float(values):
        return None
    leading = next((n for n, index in enumerate(indices) if index is not None), len(indices))
    chosen = indices[leading:]
    known = [known_steps(index) for index in chosen if is_tensor(index)]
    if not known or len(known) != len(into.meta["val"].shape) - leading or None in known:
        return None
    dims = max(len(shape_of(index)) for index in chosen)
    size = shape_of(values)[leading:]
    if len(size) != dims or shape_of(values)[:leading] != shape_of(into)[:leading]:
        return None
    if torch.broadcast_shapes(*(shape_of(index) for index in chosen)) != torch.Size(size):
        return None
    covers = [_cover(found, size) for found in known if found is not None]
    used = [d for c in covers if c for d in (c.place, c.window) if d is not None]
    spare = [d for d, n in enumerate(size) if n > 1 and d not in used]
    if None in covers or len(set(used)) != len(used) or spare:
        return None
    found = OverlapAdd(leading, dims, tuple(c for c in covers if c))
    ends = [(c.places - 1) + (c.windows - 1) * c.stride for c in found.covers]
    inside = all(end < n for end, n in zip(ends, shape_of(into)[leading:], strict=True))
    return found if inside and prod(c.terms for c in found.covers) <= MOST_TERMS else None


def _cover(index: Steps, size: tuple[int, ...]) -> Cover | None:
    """One of the two steps must be 1, or the places of an element are not one to each window."""
    moving = [
        (d, size[d], s) for d, s in enumerate(index.broadcast(len(size))) if s and size[d] > 1
    ]
    near = sorted((n, d) for d, n, s in moving if s == 1)
    if index.base or not near or len(moving) > 2:
        return None
    places, place = near[0]
    far = [(d, n, s) for d, n, s in moving if d != place]
    if not far:
        return Cover(place, places, None, 1, places)
    ((window, windows, stride),) = far
    return Cover(place, places, window, windows, stride) if stride > 0 else None


def known_steps(node: Any) -> Steps | None:
    """What an index tensor holds, where it is made of arange, sums, multiples and new dimensions; else None."""
    name = name_of(node)
    if not name or not is_tensor(node):
        return None
    if name == "iota" and node.meta["val"].dtype in PLACES:  # numbers of 8 bits would be a mask
        start, step = argument(node, "start"), argument(node, "step")
        return Steps(start, (step,)) if type(start) is type(step) is int else None
    if name == "unsqueeze" and (found := known_steps(node.args[0])):
        steps, dim = list(found.steps), node.args[1] % len(shape_of(node))
        return Steps(found.base, (*steps[:dim], 0, *steps[dim:]))
    if name == "add" and argument(node, "alpha") == 1:
        return _added(node)
    if name == "mul" and type(node.args[1]) is int and (found := known_steps(node.args[0])):
        by = node.args[1]
        return Steps(found.base * by, tuple(s * by for s in found.steps))
    return None


def _added(node: Node) -> Steps | None:
    left, right = known_steps(node.args[0]), known_steps(node.args[1])
    if type(node.args[1]) is int:
        right = Steps(node.args[1], ())
    if left is None or right is None:
        return None
    dims = len(shape_of(node))
    both = zip(left.broadcast(dims), right.broadcast(dims), strict=True)
    return Steps(left.base + right.base, tuple(a + b for a, b in both))
