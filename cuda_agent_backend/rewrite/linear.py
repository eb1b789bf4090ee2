"""A sum moved through linear operators towards what it came from: sum(a * 2 + b) = sum(a) * 2 + sum(b).

`trace` follows a value upwards and describes its sum as a term, without changing the graph. A rule brings the `Leaf`
that says where moving the sum saves work; a sum that reaches none stays where it is.

Only steps that also hold where there are infinities are taken: a sum of terms is the same in any order (NaN once it
has a NaN or infinities of both signs), and a finite factor may be taken out of it. An infinite factor may not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    VIEWS,
    Editor,
    argument,
    aten,
    calls,
    dtype_of,
    is_float,
    is_tensor,
    is_view,
    name_of,
    number,
    reduced_dims,
    replace,
    shape_of,
    wide_of,
    without,
)
from cuda_agent_backend.rewrite.terms import (
    Added,
    Dims,
    Permuted,
    Plain,
    Scaled,
    Shaped,
    Shifted,
    Term,
)

Leaf = Callable[[Node, Dims], Term | None]
"""The sum of a node's value over dimensions if it is of the kind that the rule is for, else None."""


def move_sums(graph: Graph, leaf: Leaf) -> bool:
    """Move every sum and mean through linear operators where that pays."""
    moved = False
    for node in calls(graph, "sum", "mean"):
        if not node.users or not (term := term_of(node, leaf)).pays:
            continue
        at, wide = Editor(graph, node), wide_of(dtype_of(node))
        total = term.emit(at, wide)
        replace(node, at.cast(at.shaped(total, shape_of(node)), dtype_of(node)))
        moved = True
    return moved


def term_of(node: Node, leaf: Leaf) -> Term:
    """The term of a sum or a mean; it pays where moving the sum does. Dimensions of size one may be missing."""
    source, dims = argument(node, "self"), reduced_dims(node)
    if not is_float(source) or not is_float(node):
        return Plain(source, dims)
    term = trace(source, dims, leaf)
    return Scaled(term, _count(source, dims), True) if name_of(node) == "mean" else term


def trace(node: Node, dims: Dims, leaf: Leaf) -> Term:
    """The sum of a value over dimensions, moved up to leaves where there are any."""
    if len(node.users) == 1 and is_float(node):
        step = _STEPS.get(name_of(node))
        term = leaf(node, dims) or (step(node, dims, leaf) if step else None)
        if term is not None and term.pays:
            return term
    return Plain(node, dims)


def operand(node: Node, shape: Sequence[int], dims: Dims, leaf: Leaf) -> Term:
    """The sum over dimensions of a value that is broadcast to a shape; dimensions of one remain for what it lacks."""
    own = shape_of(node)
    padding = len(shape) - len(own)
    padded = (1,) * padding + own
    repeated = math.prod(shape[d] for d in dims if padded[d] == 1)
    mine = tuple(d - padding for d in dims if d >= padding)
    term: Term = trace(node, mine, leaf)
    kept = without(padded, dims)
    if kept != without(own, mine):
        term = Shaped(term, kept)
    return Scaled(term, repeated)


def _count(node: Node, dims: Dims) -> int:
    return math.prod(shape_of(node)[d] for d in dims)


def _mul(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    factor = number(argument(node, "other"))
    if factor is None or node.target is not aten.mul.Tensor:
        return None
    return Scaled(trace(argument(node, "self"), dims, leaf), factor)


def _div(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    factor = number(argument(node, "other"))
    if not factor or node.target is not aten.div.Tensor:
        return None
    return Scaled(trace(argument(node, "self"), dims, leaf), factor, True)


def _neg(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    return Scaled(trace(argument(node, "self"), dims, leaf), -1)


def _add(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    left, right = argument(node, "self"), argument(node, "other")
    factor = number(argument(node, "alpha"))
    if factor is None or node.target not in (aten.add.Tensor, aten.sub.Tensor):
        return None
    factor = -factor if name_of(node) == "sub" else factor
    amount = number(right)
    if amount is not None:
        return Shifted(trace(left, dims, leaf), amount * factor * _count(node, dims))
    if not is_tensor(left) or not is_tensor(right):
        return None
    shape = shape_of(node)
    return Added(
        operand(left, shape, dims, leaf), Scaled(operand(right, shape, dims, leaf), factor)
    )


def _cast(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    source = node.args[0]
    if not is_float(source) or torch.float64 in (dtype_of(node), dtype_of(source)):  # type: ignore[arg-type]
        return None
    return trace(source, dims, leaf)  # type: ignore[arg-type]


def _clone(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    return trace(argument(node, "self"), dims, leaf)


def _permute(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    rank = len(shape_of(node))
    order = [d % rank for d in argument(node, "dims")]
    mine = tuple(sorted(order[d] for d in dims))
    kept = [order[d] for d in range(rank) if d not in dims]
    ranks = sorted(kept)
    term = trace(argument(node, "self"), mine, leaf)
    return Permuted(term, tuple(ranks.index(d) for d in kept))


def _expand(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    source, shape = argument(node, "self"), shape_of(node)
    padded = (1,) * (len(shape) - len(shape_of(source))) + shape_of(source)
    if without(padded, dims) != without(shape, dims):
        return None
    return operand(source, shape, dims, leaf)


def _view(node: Node, dims: Dims, leaf: Leaf) -> Term | None:
    source = argument(node, "self")
    if not is_view(node):
        return None
    mine = matching_dims(shape_of(source), shape_of(node), dims)
    if mine is None:
        return None
    return Shaped(trace(source, mine, leaf), without(shape_of(node), dims))


def matching_dims(before: Sequence[int], after: Sequence[int], dims: Dims) -> Dims | None:
    """The dimensions of a shape that become these of another one with the same elements; None where they are only
    parts of dimensions.
    """
    found: list[int] = []
    old = [d for d, n in enumerate(before) if n != 1]
    new = [d for d, n in enumerate(after) if n != 1]
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while (a := _size(before, left)) != (b := _size(after, right)):
            if not (old if a < b else new):
                return None
            (left if a < b else right).append((old if a < b else new).pop(0))
        inside = [d in dims for d in right]
        if any(inside) and not all(inside):
            return None
        found += left if all(inside) else []
    return tuple(sorted(found))


def _size(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)


_STEPS: dict[str, Callable[[Node, Dims, Leaf], Term | None]] = {
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "add": _add,
    "sub": _add,
    "_to_copy": _cast,
    "convert_element_type": _cast,
    "clone": _clone,
    "permute": _permute,
    "expand": _expand,
    **dict.fromkeys(VIEWS, _view),
}
