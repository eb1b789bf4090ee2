"""sum over n of (X W)[m, n] = sum over k of X[m, k] s[k], where s[k] = sum over n of W[k, n]: no matrix product.

Likewise over the rows, for each matrix of a batch, with an addend, and for means. An addend is summed by itself.

In real numbers it always holds. With infinities it does not: where X[m, k] is infinite, its row of the product is
infinite with the signs of W[k, :], and its sum NaN unless all of these are equal, whereas X[m, k] s[k] is infinite. So
infinite factors are multiplied with t[k] = sum over n of W[k, n] * infinity, which is just that: infinite of one sign,
or NaN. t comes from the same pass over W as s.

s and what follows from it are added up in double. The product's elements may be small where s is large, or s small
where its terms are large; in single precision what is lost of s is then many times what eager loses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import Editor, aten, shape_of
from cuda_agent_backend.graph.matrix_product import matrix_product
from cuda_agent_backend.rewrite.linear import move_sums, operand
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.terms import Added, Dims, Scaled, Term

PAYS = 3
"""Multiplications in the product for each element of its operands, from which on reading those once is less work."""


@dataclass(frozen=True)
class SummedProduct:
    """``left @ right`` summed over ``dims`` of the result, its columns or its rows among them."""

    left: Node
    right: Node
    dims: Dims
    pays: bool = True

    def emit(self, at: Editor, wide: torch.dtype) -> Node:
        left, right = at.cast(self.left, wide), at.cast(self.right, wide)
        rank = len(shape_of(left))
        if rank - 1 in self.dims:
            terms = _terms(at, left, right, -1, -2)
            dims = {d for d in self.dims if d != rank - 1} | {rank - 1}
        else:
            terms = _terms(at, right, left, -2, -1)
            dims = {d for d in self.dims if d != rank - 2} | {rank - 2}
        return at.cast(at.call(aten.sum.dim_IntList, terms, sorted(dims)), wide)


def _terms(at: Editor, kept: Node, summed: Node, away: int, put: int) -> Node:
    """Each element of ``kept`` times the sum of what it meets in ``summed``, in double."""
    sums = at.call(aten.sum.dim_IntList, at.cast(summed, torch.float64), [away])
    signs = at.call(aten.sum.dim_IntList, at.call(aten.mul.Tensor, summed, math.inf), [away])
    shown = (at.call(aten.unsqueeze.default, found, put) for found in (sums, signs))
    return weighted(at, kept, *shown)


def weighted(at: Editor, kept: Node, sums: Node, signs: Node) -> Node:
    """Each element of ``kept`` times one of ``sums``, in double; where it is infinite times one of ``signs``, which are
    the sums of what it meets times infinity."""
    double = torch.float64
    finite = at.call(aten.mul.Tensor, at.cast(kept, double), sums)
    infinite = at.call(aten.mul.Tensor, kept, signs)
    is_infinite = at.call(aten.eq.Scalar, at.call(aten.abs.default, kept), math.inf)
    return at.call(aten.where.self, is_infinite, at.cast(infinite, double), finite)


def summed_product(node: Node, dims: Dims) -> Term | None:
    """The leaf: a product whose columns or rows are summed."""
    found, shape = matrix_product(node), shape_of(node)
    rank = len(shape)
    if found is None or not {rank - 1, rank - 2} & set(dims):
        return None
    sizes = math.prod(shape_of(found.left)), math.prod(shape_of(found.right))
    if math.prod(shape) * shape_of(found.left)[-1] < PAYS * sum(sizes):
        return None
    term: Term = Scaled(SummedProduct(found.left, found.right, dims), found.alpha)
    if found.addend is None:
        return term
    return Added(Scaled(operand(found.addend, shape, dims, summed_product), found.beta), term)


def apply(graph: Graph) -> bool:
    return move_sums(graph, summed_product)


RULE = Rule("sum_of_product", apply, exact=False)
