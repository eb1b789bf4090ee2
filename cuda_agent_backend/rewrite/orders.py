"""Two matrix products one after another, of which the other one is better made first: (A B) C = A (B C)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    argument,
    dtype_of,
    is_tensor,
    is_view,
    name_of,
    reduced_dims,
    shape_of,
)
from cuda_agent_backend.graph.matrix_product import (
    PRODUCT_TYPES,
    PRODUCTS,
    MatrixProduct,
    matrix_product,
)
from cuda_agent_backend.rewrite.diagonal import diagonal_of

PAYS = 2
"""How many times the multiplications of the other order there are: it takes kernels of its own to see if it holds."""
SUMS = ("sum", "mean")


@dataclass(frozen=True)
class Chain:
    """A product ``inner`` whose result ``outer`` multiplies, as its left operand or its right one, transposed or not.

    left, right: what ``inner`` multiplies, as it stands.
    """

    inner: Node
    outer: Node
    left: Node
    right: Node
    other: Node
    is_left: bool
    is_transposed: bool


def chains_of(outer: Node) -> Iterator[Chain]:
    """The chains that end with a node in which the other order pays, and the inner product is needed for nothing else
    but sums of its rows or columns."""
    product = matrix_product(outer)
    if product is None:
        return
    for operand, other in ((product.left, product.right), (product.right, product.left)):
        found = _inner(operand)
        if found is None:
            continue
        inner, transposed = found
        first = matrix_product(inner)
        if first is None or not _is_plain(first):
            continue
        if len({dtype_of(m) for m in (outer, inner, first.left, first.right, other)}) > 1:
            continue  # of another dtype than its operands
        if (again := _inner(other)) is not None and again[0] is inner:
            continue  # its square, which takes it as it is
        if any(diagonal_of(m) is not None for m in (first.left, first.right, other)):
            continue  # no product at all (`diagonal_product`)
        is_left = operand is product.left
        chain = Chain(inner, outer, first.left, first.right, other, is_left, transposed)
        if _pays(chain) and _is_all(chain):
            yield chain


def chains_with(node: Node) -> list[Chain]:
    """The chains that a product is one of, where a sketch makes products: those of a chain are made all the same."""
    device = node.meta["val"].device.type
    if name_of(node) not in PRODUCTS or dtype_of(node) not in PRODUCT_TYPES.get(device, ()):
        return []
    ends = dict.fromkeys([node, *(end for end in _ends(node) if name_of(end) in PRODUCTS)])
    return [c for end in ends for c in chains_of(end) if node in (c.inner, c.outer)]


def _is_plain(product: MatrixProduct) -> bool:
    return product.addend is None and product.alpha == 1


def _inner(operand: Node) -> tuple[Node, bool] | None:
    """The product whose matrices an operand has, and whether they are transposed in it."""
    node, transposed = operand, False
    while name_of(node) not in PRODUCTS:
        if not _keeps_matrices(node):
            return None
        transposed ^= name_of(node) == "permute"
        node = argument(node, "self")
    same = math.prod(shape_of(node)) == math.prod(shape_of(operand))
    return (node, transposed) if same else None


def _keeps_matrices(node: Node) -> bool:
    """Whether a node has the same matrices as its operand, one after the other: in batches counted otherwise, or all of
    them transposed."""
    if not is_tensor(node) or not node.args or not is_tensor(node.args[0]):
        return False
    before, after = shape_of(node.args[0]), shape_of(node)  # type: ignore[arg-type]
    if min(len(before), len(after)) < 2:
        return False
    if name_of(node) == "permute":
        order = [d % len(after) for d in argument(node, "dims")]
        return order == [*range(len(after) - 2), len(after) - 1, len(after) - 2]
    same = math.prod(before) == math.prod(after) and before[-2:] == after[-2:]
    return same and (is_view(node) or name_of(node) in ("expand", "clone"))


def _ends(product: Node) -> Iterator[Node]:
    """What reads the matrices of a product."""
    for user in product.users:
        if user.op == "call_function" and _keeps_matrices(user):
            yield from _ends(user)
        else:
            yield user


def _is_all(chain: Chain) -> bool:
    """Whether nothing but the outer product needs the inner one as it is.

    Of two sums each would have the product have a user more (`linear.trace`), and it would be made after all.
    """
    others = [end for end in _ends(chain.inner) if end is not chain.outer]
    return len(others) <= 1 and all(map(_is_sum_of, others))


def _is_sum_of(node: Node) -> bool:
    """Whether a node adds rows or columns of its operand up."""
    if name_of(node) not in SUMS or not is_tensor(argument(node, "self")):
        return False
    rank = len(shape_of(argument(node, "self")))
    return bool({rank - 1, rank - 2} & set(reduced_dims(node)))


def _pays(chain: Chain) -> bool:
    """Whether the order as it is takes several times the multiplications of the other."""
    rows, inner = shape_of(chain.left)[-2:]
    columns = shape_of(chain.right)[-1]
    other = shape_of(chain.other)
    first = rows * inner * columns
    if chain.is_transposed:
        rows, columns = columns, rows
    if chain.is_left:  # [rows, inner] [inner, columns] [columns, wide]
        wide = other[-1]
        then, instead = rows * columns * wide, inner * columns * wide + rows * inner * wide
    else:  # [tall, rows] [rows, inner] [inner, columns]
        tall = other[-2]
        then, instead = tall * rows * columns, tall * rows * inner + tall * inner * columns
    return first + then >= PAYS * instead
