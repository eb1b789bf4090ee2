"""Matrix products that a rewrite does away with, recognised before there is a task, on whatever graph they stand in."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import is_float, is_tensor, name_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS
from cuda_agent_backend.rewrite.linear import term_of
from cuda_agent_backend.rewrite.orders import chains_with
from cuda_agent_backend.rewrite.rules.diagonal_of_product import READERS, diagonal_of_product
from cuda_agent_backend.rewrite.rules.diagonal_product import has_diagonal
from cuda_agent_backend.rewrite.rules.sum_of_product import summed_product
from cuda_agent_backend.rewrite.terms import Dims, Term

WORKS = frozenset(
    {
        "clone",
        "convert_element_type",
        "sum",
        "mean",
        "prod",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
    }
)
"""Operators that work on a diagonal, beside those that go point by point."""
STEPS = 12
"""How far a sum may be from the product."""


def vanishes(node: Node) -> bool:
    """Whether a node is a product that a rewrite does away with: one with a diagonal matrix, one that is summed, one of
    which only diagonals are read, or one of two that are better made in the other order."""
    if name_of(node) not in PRODUCTS or not is_float(node):
        return False
    tests = (has_diagonal, _is_summed_away, _is_read_along_diagonals, chains_with)
    return any(test(node) for test in tests)


def vanishes_within(node: Node, nodes: Collection[Node], outputs: Collection[Node]) -> bool:
    """Whether a product that `vanishes` does so where a part of its graph is all that is rewritten.

    nodes, outputs: those of the part, and those of them that are needed outside.
    """
    if has_diagonal(node):
        return True
    if node not in outputs and (_is_summed_away(node) or _is_read_along_diagonals(node)):
        return True
    chains = chains_with(node)
    return any(c.inner in nodes and c.outer in nodes and c.inner not in outputs for c in chains)


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


def _is_read_along_diagonals(product: Node) -> bool:
    readers = [product]
    for _ in range(STEPS):
        readers = list(readers[0].users)
        if not readers or len(readers) > 1 or name_of(readers[0]) in READERS:
            break
    return bool(readers) and all(_reads_diagonal(reader, product) for reader in readers)


def _reads_diagonal(reader: Node, product: Node) -> bool:
    reached: list[Node] = []
    if diagonal_of_product(reader, reached) is None or product not in reached:
        return False
    return name_of(reader) != "diagonal" or _is_worked_on(reader)


def _is_worked_on(view: Node) -> bool:
    """Whether all that reads a view computes something of it that can be in one region with it.

    No view is an output of a region: what it views would be, here the product itself.
    """
    return bool(view.users) and all(map(_works, view.users))


def _works(user: Node) -> bool:
    if not is_tensor(user) or not isinstance(user.target, torch._ops.OpOverload):
        return False
    if any(result.alias_info is not None for result in user.target._schema.returns):
        return _is_worked_on(user)
    return torch.Tag.pointwise in user.target.tags or name_of(user) in WORKS
