"""(A B) C = A (B C), and A (B C) = (A B) C: the product of fewer multiplications first.

It holds where operands are finite. An infinity of A makes a row of A B infinite with the signs of a row of B, and so
NaN in (A B) C, but in A (B C) it meets a sum that is finite. So there is a guard: an output beside the task's own,
zeros added up, NaN where an operand is not finite. The task as it stands is then computed. What is not finite in B or
C makes something in B C that is not either, since it is multiplied with all of a row or a column; likewise with A and
B C. So it is enough to look at B C and A, or at A (B C), whichever has fewer elements.
"""

from __future__ import annotations

import math

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import Editor, aten, calls, dtype_of, replace, shape_of, wide_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS, matrix_product
from cuda_agent_backend.rewrite.orders import Chain, chains_of
from cuda_agent_backend.rewrite.rule import Rule


def apply(graph: Graph) -> bool:
    changed = False
    for node in calls(graph, *PRODUCTS):
        chain = next(chains_of(node), None) if node.users else None
        if chain is not None:
            made, apart = _reordered(Editor(graph, node), chain)
            replace(node, made)
            _guard(graph, min([made], apart, key=_elements))
            changed = True
    return changed


def _reordered(at: Editor, chain: Chain) -> tuple[Node, list[Node]]:
    """The result, and what it was made of last."""
    left, right = (_as_batches(at, m, chain.other) for m in (chain.left, chain.right))
    if chain.is_transposed:
        left, right = _transposed(at, right), _transposed(at, left)
    if chain.is_left:
        right = _product(at, right, chain.other)
    else:
        left = _product(at, chain.other, left)
    return _outer(at, chain.outer, left, right), [left, right]


def _as_batches(at: Editor, node: Node, other: Node) -> Node:
    """With as many dimensions as what it is to be multiplied with: a matrix is a batch of one."""
    return at.shaped(node, (*shape_of(other)[:-2], *shape_of(node)[-2:]))


def _transposed(at: Editor, node: Node) -> Node:
    rank = len(shape_of(node))
    return at.call(aten.permute.default, node, [*range(rank - 2), rank - 1, rank - 2])


def _product(at: Editor, left: Node, right: Node) -> Node:
    one = aten.mm.default if len(shape_of(left)) == 2 else aten.bmm.default
    return at.call(one, left, right)


def _outer(at: Editor, outer: Node, left: Node, right: Node) -> Node:
    """As the outer product, of other operands."""
    product = matrix_product(outer)
    assert product is not None
    if product.addend is None and product.alpha == 1:
        return _product(at, left, right)
    addend = outer.args[0]
    return at.call(outer.target, addend, left, right, **outer.kwargs)  # type: ignore[arg-type]


def _elements(values: list[Node]) -> int:
    return sum(math.prod(shape_of(value)) for value in values)


def _guard(graph: Graph, values: list[Node]) -> None:
    """Add an output: 0 where all of these values is finite, else NaN."""
    (results,) = graph.output_node().args
    at = Editor(graph, graph.output_node())
    found = [_zeros(at, value) for value in values]
    total = found[0] if len(found) == 1 else at.call(aten.add.Tensor, *found)
    graph.output_node().args = ([*results, total],)  # type: ignore[misc]


def _zeros(at: Editor, value: Node) -> Node:
    zeros = at.call(aten.mul.Tensor, at.cast(value, wide_of(dtype_of(value))), 0.0)
    return at.call(aten.sum.dim_IntList, zeros, list(range(len(shape_of(value)))))


RULE = Rule("product_order", apply, exact=False, guarded=True)
