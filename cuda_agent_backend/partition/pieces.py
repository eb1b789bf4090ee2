"""How a connected part of a graph is cut into what one kernel can do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node
from torch.fx.node import Argument

from cuda_agent_backend.operators.kinds import (
    Kind,
)
from cuda_agent_backend.partition.analysis import OWN_REGION, Analysis
from cuda_agent_backend.partition.node_values import (
    device_of,
    is_selection,
    size_in_bytes,
    users_of,
)

CONVOLUTION = torch.ops.aten.convolution.default
DUAL_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    CONVOLUTION,
)
"""Products of which two of one operand may be one region."""
LEAST_DUAL_SIDE = 8
"""Rows and columns from which on two products are worth the tiles by which one kernel does both."""


def pieces_of(part: list[Node], analysis: Analysis) -> list[list[Node]]:
    """The parts of a component that are regions.

    Its attentions, sorts and scatters run before the rest, which may fall into several parts without them.
    """
    alone = [n for n in part if analysis.kinds[n] in OWN_REGION and not is_selection(n)]
    if not alone:
        return _one_product_each(part, analysis)
    rest = [n for n in part if analysis.kinds[n] not in OWN_REGION]
    return [
        *([node, *(n for n in node.users if n in part and is_selection(n))] for node in alone),
        *(
            piece
            for found in analysis.components(rest, analysis.level)
            for piece in _one_product_each(found, analysis)
        ),
    ]


def _one_product_each(part: list[Node], analysis: Analysis) -> list[list[Node]]:
    """Take all products but the last out of a component: each of them runs before the rest, which may fall apart.

    Two products that one kernel may do stay together.
    """
    products = [node for node in part if analysis.kinds[node] is Kind.PRODUCT]
    if len(products) < 2 or (
        len(products) == 2 and _is_dual_product(products[0], products[1], part)
    ):
        return [part]
    apart = set(products[:-1])
    rest = [node for node in part if node not in apart]
    return [[node] for node in products[:-1]] + analysis.components(rest, analysis.level)


def _is_dual_product(first: Node, second: Node, part: Iterable[Node]) -> bool:
    """Whether two products have one operand in common, weights of one layout, and users in ``part`` alone.

    Not in half precision: there the tiles that TMA loads are faster than those of one kernel for both.
    """
    if first.target not in DUAL_PRODUCTS or first.target is not second.target:
        return False
    (left, weights), (other, others) = _factors(first), _factors(second)
    if left is not other or not isinstance(weights, Node) or not isinstance(others, Node):
        return False
    if first.target is CONVOLUTION and not _go_alike(first, second):
        return False
    users, values = {*first.users, *second.users}, [n.meta["val"] for n in (weights, others)]
    same = values[0].shape == values[1].shape and values[0].stride() == values[1].stride()
    whole = values[0].dtype == values[1].dtype == torch.float32
    large = min(_rows_and_columns(first)) >= LEAST_DUAL_SIDE
    return device_of(first)[0] == "cuda" and whole and large and same and users <= set(part)


def _factors(product: Node) -> tuple[Argument, Argument]:
    """What is multiplied, the weights second."""
    left, weights = product.args[:2] if product.target is CONVOLUTION else product.args[-2:]
    return left, weights


def _go_alike(first: Node, second: Node) -> bool:
    """Whether two convolutions of one image go over it in the same way, none of them transposed or in groups."""
    *_, transposed, _, groups = way = first.args[3:]
    return way == second.args[3:] and (transposed, groups) == (False, 1)


def _rows_and_columns(product: Node) -> tuple[int, int]:
    """Of what a product makes."""
    shape = product.meta["val"].shape
    if product.target is CONVOLUTION:
        return shape.numel() // shape[1], shape[1]
    return shape[-2], shape[-1]


def halves_of(part: list[Node]) -> tuple[list[Node], list[Node]] | None:
    """Cut a component in graph order where the fewest bytes cross, not too far from its middle.

    Selections go with their operator: where they stand is an accident.
    """
    body = [node for node in part if not is_selection(node)]
    count = len(body)
    place = {node: number for number, node in enumerate(body)}
    last_use = [max((place[u] for u in users_of(node) if u in place), default=-1) for node in body]
    sizes = [sum(map(size_in_bytes, (node, *filter(is_selection, node.users)))) for node in body]
    low, high = max(1, count // 5), max(2, count - count // 5)
    best: tuple[int, int] | None = None
    for cut in range(low, min(high, count)):
        crossing = sum(sizes[i] for i in range(cut) if last_use[i] >= cut)
        if best is None or crossing < best[0]:
            best = (crossing, cut)
    if best is None:
        return None
    place |= {n: place.get(n.all_input_nodes[0], 0) for n in part if is_selection(n)}
    first = [node for node in part if place[node] < best[1]]
    return first, [node for node in part if place[node] >= best[1]]
