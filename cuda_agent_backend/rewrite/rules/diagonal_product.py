"""diag(v) B = v[m] B[m, n], a scaling of rows; B diag(v) = B[m, n] v[n], a scaling of columns. Batches likewise.

In real numbers it always holds. A matrix product also multiplies the zeros beside the diagonal: an element of B that
is NaN or infinite makes the other elements of its column (of its row, if the diagonal matrix is on the right) NaN. So
those are counted, and results are NaN where there is one elsewhere in the same column.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import Editor, aten, calls, dtype_of, replace, shape_of, wide_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS, matrix_product
from cuda_agent_backend.rewrite.diagonal import diagonal_of
from cuda_agent_backend.rewrite.rule import Rule


def has_diagonal(node: Node) -> bool:
    """Whether a node is a product with a diagonal matrix."""
    found = matrix_product(node)
    return found is not None and any(diagonal_of(m) is not None for m in (found.left, found.right))


def _scaled(at: Editor, vector: Node, matrix: Node, rows: bool, wide: torch.dtype) -> Node:
    """The matrix with its rows (or columns) scaled, NaN where the zeros beside the diagonal make it so."""
    shape = shape_of(vector)
    scale, matrix = at.cast(vector, wide), at.cast(matrix, wide)
    if rows:
        scale = at.shaped(scale, (*shape[:-2], shape[-1], 1))
    nothing = at.call(aten.mul.Tensor, matrix, 0.0)
    spoilt = at.cast(at.call(aten.ne.Scalar, nothing, 0.0), torch.float32)
    count = at.call(aten.sum.dim_IntList, spoilt, [-2 if rows else -1], True)
    elsewhere = at.call(aten.gt.Tensor, count, spoilt)
    return at.call(
        aten.where.self,
        elsewhere,
        at.constant(float("nan"), wide),
        at.call(aten.mul.Tensor, matrix, scale),
    )


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(graph, *PRODUCTS):
        found = matrix_product(node)
        if found is None or not has_diagonal(node):
            continue
        at = Editor(graph, node)
        wide = wide_of(dtype_of(node))
        vector = diagonal_of(found.left)
        if vector is not None:
            made = _scaled(at, vector, found.right, True, wide)
        else:
            vector = diagonal_of(found.right)
            assert vector is not None
            made = _scaled(at, vector, found.left, False, wide)
        if found.alpha != 1:
            made = at.call(aten.mul.Tensor, made, found.alpha)
        if found.addend is not None:
            addend = at.cast(found.addend, wide)
            if found.beta != 1:
                addend = at.call(aten.mul.Tensor, addend, found.beta)
            made = at.call(aten.add.Tensor, addend, made)
        replace(node, at.cast(made, dtype_of(node)))
        changed = True
    return changed


RULE = Rule("diagonal_product", apply, exact=False)
