"""Matrix products that a rewrite does away with, recognised before there is a task, on whatever graph they stand in."""

from __future__ import annotations

from torch.fx import Node

from cuda_agent_backend.rewrite.edit import is_float, is_tensor, name_of
from cuda_agent_backend.rewrite.linear import term_of
from cuda_agent_backend.rewrite.orders import is_in_chain
from cuda_agent_backend.rewrite.products import PRODUCTS
from cuda_agent_backend.rewrite.rules.diagonal_product import has_diagonal
from cuda_agent_backend.rewrite.rules.sum_of_product import summed_product
from cuda_agent_backend.rewrite.terms import Dims, Term

STEPS = 12
"""How far a sum may be from the product."""


def vanishes(node: Node) -> bool:
    """Whether a node is a product that a rewrite does away with: one with a diagonal matrix, one that is summed, or one
    of two that are better made in the other order."""
    if name_of(node) not in PRODUCTS or not is_float(node):
        return False
    return has_diagonal(node) or _is_summed_away(node) or is_in_chain(node)


def _is_summed_away(product: Node) -> bool:
    node = product
    for _ in range(STEPS):
        if len(node.users) != 1:
            return False
        node = next(iter(node.users))
        if not is_tensor(node) or node.op != "call_function":
            return False
        if name_of(node) in ("sum", "mean"):
            return _reaches(node, product)
    return False


def _reaches(total: Node, product: Node) -> bool:
    """Whether moving a sum through linear operators brings it to that product."""
    reached = []

    def leaf(node: Node, dims: Dims) -> Term | None:
        term = summed_product(node, dims)
        if term is not None:
            reached.append(node)
        return term

    return term_of(total, leaf).pays and product in reached
