"""Copies before matrix products and convolutions that our kernels read through: they move values and make none.

Inductor copies an operand that a library does not take as it lies, and pads images in memory. A kernel reads what was
copied where it is, so such a copy belongs to the region of the product, to each one's where there are several: like a
constant it is no part of any other region, and nothing of it exists in memory.

So do masks that leave a triangle of an operand (`masked_operands`): a product that knows of the zeros leaves terms out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from cuda_agent_backend.operators.kinds import Kind
from cuda_agent_backend.operators.masked_operands import masks_a_factor, unmasked
from cuda_agent_backend.operators.products import is_convolution, is_depthwise
from cuda_agent_backend.operators.views import is_copy, is_zero_padding

STORES_COPIES = (Kind.COMPUTE, Kind.PRODUCT, Kind.VANISHING, Kind.RANDOM)
"""What can store its result as a copy of it would be, so that the copy costs nothing."""


def read_through(nodes: Sequence[Node], kinds: Mapping[Node, Kind]) -> set[Node]:
    """Copies that only products on cuda need, and views between these; ``nodes`` in graph order."""
    possible: set[Node] = set()
    for node in reversed(nodes):
        if masks_a_factor(node, kinds):
            possible.add(node)
            continue
        moves = kinds[node] is Kind.VIEW or _is_copy(node, kinds)
        if moves and node.users and all(_leads_on(u, node, possible, kinds) for u in node.users):
            possible.add(node)
    found: set[Node] = set()
    for node in nodes:
        begins = node in possible and _begins(node, possible, kinds)
        if begins or (node in possible and not found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return found


def _begins(node: Node, possible: set[Node], kinds: Mapping[Node, Kind]) -> bool:
    source = unmasked(node)
    if source is not node:
        return not stored_so(source, kinds)
    return _is_copy(node, kinds) and _pays(node, possible, kinds)


def _is_copy(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    return kinds[node] is Kind.COMPUTE and (is_copy(node) or is_zero_padding(node))


def _leads_on(user: Node, node: Node, possible: set[Node], kinds: Mapping[Node, Kind]) -> bool:
    """Whether ``user`` takes ``node`` to products, or is one."""
    if is_zero_padding(node):
        return _takes(user, node, kinds)
    return user in possible or _takes(user, node, kinds)


def _takes(user: Node, node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether ``user`` is a product that reads ``node`` as it is: padded images in convolutions alone, whose kernels
    have masks anyway."""
    value = user.meta.get("val")
    if kinds[user] is not Kind.PRODUCT or not isinstance(value, torch.Tensor):
        return False
    if value.device.type != "cuda" or is_depthwise(user):
        return False
    return not is_zero_padding(node) or (is_convolution(user) and user.args[0] is node)


def _pays(node: Node, possible: set[Node], kinds: Mapping[Node, Kind]) -> bool:
    """Whether reading through a copy saves something and costs no wide reads."""
    if is_zero_padding(node):
        return True
    source = node.all_input_nodes[0]
    return lines_stay(source, matrix_of(node, possible)) and not stored_so(source, kinds, node)


def matrix_of(node: Node, possible: set[Node]) -> int:
    """Elements of a matrix of the products that read a copy, the fewest; of all of an image."""
    sizes = []
    for user in node.users:
        if user in possible:
            sizes.append(matrix_of(user, possible))
        else:
            shape = node.meta["val"].shape
            sizes.append(math.prod(shape if is_convolution(user) else shape[-2:]))
    return min(sizes)


def lines_stay(source: Node, matrix: int) -> bool:
    """Whether what lies next to each other in ``source`` does so within a matrix: kernels read no other way in vectors.

    A matrix is the last so many elements of a copy.
    """
    value = source.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    dims = [
        d for d, (n, s) in enumerate(zip(value.shape, value.stride(), strict=True)) if s == 1 < n
    ]
    return any(math.prod(value.shape[d:]) <= matrix for d in dims)


def stored_so(source: Node, kinds: Mapping[Node, Kind], copy: Node | None = None) -> bool:
    """Whether an operator that nobody else needs makes ``source``, and no more of it than is copied: it can store the
    copy, or what a mask leaves of it."""
    root = source
    while kinds[root] is Kind.VIEW and len(root.users) == 1 and root.all_input_nodes:
        root = root.all_input_nodes[0]
    if kinds[root] not in STORES_COPIES or len(root.users) != 1:
        return False
    value = root.meta.get("val")
    size = (source if copy is None else copy).meta["val"].numel()
    return isinstance(value, torch.Tensor) and bool(size <= value.numel())
