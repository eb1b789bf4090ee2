"""How far apart in memory the elements of a view lie, also where no strided tensor is such a view.

A dimension is made of parts, each a count and the elements between its neighbours, the outermost first; so heads that
neighbouring heads share, ``[batch, head, 1 of 4]`` seen as ``[batch, 4 * heads]``, need no copy. A dimension of one
element has no parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch.fx import Node

from cuda_agent_backend.graph.edit import VIEWS, argument, is_tensor, name_of, shape_of

Part = tuple[int, int]
Dim = tuple[Part, ...]
Steps = tuple[Dim, ...]


def steps_of(shape: Sequence[int], stride: Sequence[int]) -> Steps:
    """Those of a strided tensor."""
    return tuple(((n, s),) if n != 1 else () for n, s in zip(shape, stride, strict=True))


def length(dim: Dim) -> int:
    return math.prod(count for count, _ in dim)


def reshaped(steps: Steps, shape: Sequence[int]) -> Steps | None:
    """In another shape, elements in the same order; None where a part would be cut unevenly, or there is none."""
    left = [part for dim in steps for part in dim]
    count_of_all = math.prod(shape)
    if count_of_all == 0 or math.prod(n for n, _ in left) != count_of_all:
        return None
    found: list[Dim] = []
    for wanted in shape:
        dim: list[Part] = []
        while wanted != 1:
            count, step = left.pop(0)
            own = math.gcd(count, wanted)
            if own != min(count, wanted):
                return None
            if own != count:
                left.insert(0, (count // own, step))
            dim.append((own, step * (count // own)))
            wanted //= own
        found.append(tuple(dim))
    return tuple(found)


def single(dim: Dim) -> int | None:
    """The one step between all neighbours of a dimension, 0 where there are none; None where there are several."""
    for (_, outer), (count, inner) in itertools.pairwise(dim):
        if outer != count * inner:
            return None
    return dim[-1][1] if dim else 0


def shared(dim: Dim) -> int:
    """How many neighbours, the innermost, are one and the same element."""
    count = 1
    for own, step in reversed(dim):
        if step:
            break
        count *= own
    return count


def moves(node: Node) -> bool:
    """Whether `moved` knows a node: a view or a copy of its one operand."""
    known = (*VIEWS, "permute", "expand", "clone")
    return is_tensor(node) and name_of(node) in known and is_tensor(node.args[0])


def moved(steps: Steps, node: Node) -> Steps | None:
    """Those of the result of a node that `moves`, of its operand's; None where there are none."""
    name, shape = name_of(node), shape_of(node)
    if name == "permute":
        return tuple(steps[d] for d in argument(node, "dims"))
    if name == "clone":
        return steps
    if name == "expand":
        steps = (*((),) * (len(shape) - len(steps)), *steps)
        return tuple(
            ((n, 0),) if not d and n != 1 else d for d, n in zip(steps, shape, strict=True)
        )
    return reshaped(steps, shape)
