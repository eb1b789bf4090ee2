"""(A B)[i, i + o] = sum over k of A[i, k] B[k, i + o], where only a diagonal of the product is read: no matrix product.

Likewise for each matrix of a batch, with an addend, and through pointwise operators and views between the product and
what reads its diagonal. A sum over rows or columns of what a mask by the identity leaves reads a diagonal too. Each
element is the sum of the terms that the product has for it, so it holds for NaN and infinities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    aten,
    calls,
    dtype_of,
    is_float,
    is_tensor,
    is_view,
    name_of,
    reduced_dims,
    shape_of,
    wide_of,
)
from cuda_agent_backend.graph.edit import replace as put_in_place
from cuda_agent_backend.graph.matrix_product import matrix_product
from cuda_agent_backend.rewrite.diagonal import identity_masks
from cuda_agent_backend.rewrite.rule import Rule

READERS = ("diagonal", "sum")
"""Operators of which the operand may be read along a diagonal only."""

Made = Callable[[Editor], Node]
"""Makes the nodes of a diagonal: a value of the shape of `torch.diagonal`, the diagonal last."""


@dataclass(frozen=True)
class Place:
    """Which elements of a value are read: those whose place along ``columns`` is that along ``rows`` plus ``offset``.

    Dimensions are counted from the front.
    """

    offset: int
    rows: int
    columns: int

    def of(self, at: Editor, node: Node) -> Node:
        """The diagonal of a value that no product is taken for."""
        return at.call(aten.diagonal.default, node, self.offset, self.rows, self.columns)

    def kept(self, rank: int) -> list[int]:
        """The dimensions that the diagonal of a value of that rank keeps, in their order."""
        return [d for d in range(rank) if d not in (self.rows, self.columns)]


def diagonal_of_product(reader: Node, reached: list[Node] | None = None) -> Made | None:
    """How to make what a node reads off a diagonal without the products that the diagonal is of; None where it reads
    something else, or no product is saved. Those products are added to ``reached``.
    """
    found: list[Node] = [] if reached is None else reached
    if not is_tensor(reader):
        return None
    if name_of(reader) == "diagonal":
        source = argument(reader, "self")
        if not is_float(source):
            return None
        rank = len(shape_of(source))
        dims = (argument(reader, d) % rank for d in ("dim1", "dim2"))
        return _traced(source, Place(argument(reader, "offset"), *dims), found)
    return _summed(reader, found) if name_of(reader) == "sum" else None


def _summed(reader: Node, reached: list[Node]) -> Made | None:
    """A sum over rows or columns of a mask by the identity."""
    masked = argument(reader, "self")
    value = identity_masks(masked) if is_float(masked) and len(masked.users) == 1 else None
    if value is None or not is_float(reader):
        return None
    shape, rank, dims = shape_of(masked), len(shape_of(masked)), reduced_dims(reader)
    if not {rank - 2, rank - 1} & set(dims) or shape_of(value) != shape:
        return None
    diagonal = _traced(value, Place(0, rank - 2, rank - 1), reached)
    if diagonal is None:
        return None
    rest = [d for d in dims if d < rank - 2]
    rest += [rank - 2] if {rank - 2, rank - 1} <= set(dims) else []
    dtype = dtype_of(reader)

    def emit(at: Editor) -> Node:
        made = at.cast(diagonal(at), dtype)
        made = at.call(aten.sum.dim_IntList, made, rest) if rest else made
        return at.shaped(made, shape_of(reader))

    return emit


def _traced(node: Any, place: Place, reached: list[Node]) -> Made | None:
    """The diagonal of a value that nothing else reads, moved up to the products that it is of."""
    if not is_float(node) or not _only_diagonals(node):
        return None
    if matrix_product(node) is not None:
        return _dots(node, place, reached)
    step = _STEPS.get(name_of(node))
    if step is not None:
        return step(node, place, reached)
    if is_view(node):
        return _view(node, place, reached)
    if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
        return _pointwise(node, place, reached)
    return None


def _only_diagonals(node: Node) -> bool:
    users = list(node.users)
    return len(users) == 1 or all(name_of(user) == "diagonal" for user in users)


def _dots(node: Node, place: Place, reached: list[Node]) -> Made | None:
    found, rank = matrix_product(node), len(shape_of(node))
    rows, columns = shape_of(node)[-2:]
    if found is None or {place.rows, place.columns} != {rank - 2, rank - 1} or not rows * columns:
        return None
    offset = place.offset if place.rows == rank - 2 else -place.offset
    first, second = max(-offset, 0), max(offset, 0)
    length = min(rows - first, columns - second)
    if not 0 < length < rows * columns:
        return None
    reached.append(node)

    def emit(at: Editor) -> Node:
        wide = wide_of(dtype_of(node))
        left = _part(at, found.left, -2, first, length)
        right = _part(at, found.right, -1, second, length)
        order = [*range(rank - 2), rank - 1, rank - 2]
        right = at.call(aten.permute.default, right, order)
        terms = at.call(aten.mul.Tensor, at.cast(left, wide), at.cast(right, wide))
        made = at.call(aten.sum.dim_IntList, terms, [-1])
        if found.alpha != 1:
            made = at.call(aten.mul.Tensor, made, found.alpha)
        if found.addend is not None:
            addend = at.cast(_diagonal(at, found.addend, shape_of(node), place), wide)
            if found.beta != 1:
                addend = at.call(aten.mul.Tensor, addend, found.beta)
            made = at.call(aten.add.Tensor, addend, made)
        return at.cast(made, dtype_of(node))

    return emit


def _part(at: Editor, node: Node, dim: int, start: int, length: int) -> Node:
    if start == 0 and length == shape_of(node)[dim]:
        return node
    return at.call(aten.slice.Tensor, node, dim, start, start + length)


def _diagonal(at: Editor, node: Node, shape: tuple[int, ...], place: Place) -> Node:
    """The diagonal of a value that is broadcast to a shape."""
    if shape_of(node) != shape:
        node = at.call(aten.expand.default, node, list(shape))
    return place.of(at, node)


def _pointwise(node: Node, place: Place, reached: list[Node]) -> Made | None:
    """The operator on its operands' diagonals; operands without dimensions stay as they are."""
    shape = shape_of(node)
    made: dict[Node, Made | None] = {}
    for read in node.all_input_nodes:
        if not is_tensor(read):
            return None
        whole = shape_of(read) == shape
        made[read] = _traced(read, place, reached) if whole else None
    if not any(made.values()):
        return None

    def emit(at: Editor) -> Node:
        def of(read: Node) -> Node:
            if not shape_of(read):
                return read
            moved = made[read]
            return moved(at) if moved else _diagonal(at, read, shape, place)

        operands = {read: of(read) for read in made}
        args, kwargs = map_arg((node.args, dict(node.kwargs)), operands.__getitem__)
        return at.call(node.target, *args, **kwargs)  # type: ignore[arg-type]

    return emit


def _clone(node: Node, place: Place, reached: list[Node]) -> Made | None:
    return _traced(argument(node, "self"), place, reached)


def _expand(node: Node, place: Place, reached: list[Node]) -> Made | None:
    source = argument(node, "self")
    same = is_tensor(source) and shape_of(source) == shape_of(node)
    return _traced(source, place, reached) if same else None


def _permute(node: Node, place: Place, reached: list[Node]) -> Made | None:
    rank = len(shape_of(node))
    order = [d % rank for d in argument(node, "dims")]
    inner = replace(place, rows=order[place.rows], columns=order[place.columns])
    made = _traced(argument(node, "self"), inner, reached)
    if made is None:
        return None
    before = inner.kept(rank)
    after = [before.index(order[d]) for d in place.kept(rank)] + [rank - 2]

    def emit(at: Editor) -> Node:
        moved = made(at)
        same = after == sorted(after)
        return moved if same else at.call(aten.permute.default, moved, after)

    return emit


def _view(node: Node, place: Place, reached: list[Node]) -> Made | None:
    """Another shape of the dimensions before rows and columns, which are the last two."""
    source, shape = node.args[0], shape_of(node)
    assert isinstance(source, Node)
    rank, inner = len(shape), len(shape_of(source))
    if {place.rows, place.columns} != {rank - 2, rank - 1} or inner < 2:
        return None
    if shape_of(source)[-2:] != shape[-2:]:
        return None
    moved = inner - rank
    made = _traced(
        source, replace(place, rows=place.rows + moved, columns=place.columns + moved), reached
    )
    if made is None:
        return None

    def emit(at: Editor) -> Node:
        diagonal = made(at)
        return at.shaped(diagonal, (*shape[:-2], shape_of(diagonal)[-1]))

    return emit


_STEPS: dict[str, Callable[[Node, Place, list[Node]], Made | None]] = {
    "clone": _clone,
    "expand": _expand,
    "permute": _permute,
}


def apply(graph: Graph) -> bool:
    changed = False
    for reader in calls(graph, *READERS):
        made = diagonal_of_product(reader) if reader.users else None
        if made is not None:
            put_in_place(reader, made(Editor(graph, reader)))
            changed = True
    return changed


RULE = Rule("diagonal_of_product", apply, exact=False)
