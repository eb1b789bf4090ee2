"""Operands of matrix products that are dequantised from 8-bit integers: weights, read as they are stored.

``(codes - zero) * scale`` belongs to the region of the product that reads it, as copies do (`operators.copies`): what
it makes is four times as large as what it reads, and is then never in memory. All terms of a sum share the scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from cuda_agent_backend.codegen.analysis.quantized_operand import CODES, fits
from cuda_agent_backend.graph.edit import dtype_of, is_tensor, name_of, shape_of
from cuda_agent_backend.graph.matrix_product import PRODUCTS
from cuda_agent_backend.operators.kinds import Kind

TRANSPOSES = ("permute", "transpose", "t")
SHIFTS = ("sub", "add")
INTEGERS = (torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class _QuantizedOperand:
    """An operand of a product that is made of codes by ``nodes``, with what is subtracted from them."""

    nodes: tuple[Node, ...]
    operand: Node
    product: Node
    zero: int


def dequantized_operands(nodes: Sequence[Node], kinds: Mapping[Node, Kind]) -> set[Node]:
    """What makes numbers of codes for products on cuda and for nothing else; ``nodes`` in graph order."""
    quantized = [
        one
        for product in nodes
        for one in _readable(
            [
                _quantized_operand(operand, product, terms, kinds)
                for operand, terms in _operands(product, kinds)
            ]
        )
    ]
    while True:
        found = {node for one in quantized for node in one.nodes}
        readers = {(one.operand, one.product) for one in quantized}
        # what something else reads is in memory, so that it can as well be read there
        own = [
            one
            for one in quantized
            if all(u in found or (n, u) in readers for n in one.nodes for u in n.users)
        ]
        if len(own) == len(quantized):
            return found
        quantized = own


def _readable(operands: Sequence[_QuantizedOperand | None]) -> list[_QuantizedOperand]:
    """Those of a product's operands that it reads as codes: both only where they are numbers as they stand."""
    quantized = [one for one in operands if one is not None]
    return quantized[:1] if any(one.zero for one in quantized) else quantized


def _operands(product: Node, kinds: Mapping[Node, Kind]) -> Iterator[tuple[Node, int]]:
    """The factors of a float32 product on cuda, each with the dimension of its terms."""
    if kinds[product] is not Kind.PRODUCT or name_of(product) not in PRODUCTS:
        return
    value, factors = product.meta["val"], product.args[-2:]
    if value.device.type != "cuda" or value.dtype != torch.float32:
        return
    for node, terms in zip(factors, (-1, -2), strict=True):
        others = [a for a in product.args if a is not node]
        if isinstance(node, Node) and len(others) == len(product.args) - 1:
            yield node, len(shape_of(node)) + terms


def _quantized_operand(
    operand: Node, product: Node, terms: int, kinds: Mapping[Node, Kind]
) -> _QuantizedOperand | None:
    """How ``operand`` is made of codes; None where it is made otherwise. ``terms``: a dimension of it."""
    node, chain, zero = operand, [], 0.0
    shifted: set[bool] = set()
    while dtype_of(node) not in CODES:
        source = _source(node, terms)
        if source is None or kinds[node] not in (Kind.COMPUTE, Kind.VIEW):
            return None
        if name_of(node) in SHIFTS:
            floats = dtype_of(node).is_floating_point
            if floats in shifted:
                return None
            shifted.add(floats)
            number = float(node.args[1])  # type: ignore[arg-type]
            zero += number if name_of(node) == "sub" else -number
        elif name_of(node) == "mul" and shifted:
            return None  # what is added behind a scale is no zero of codes
        chain.append(node)
        node, terms = source
    converted = any(name_of(n) == "convert_element_type" for n in chain)
    if not converted or not zero.is_integer() or not fits(dtype_of(node), int(zero)):
        return None
    return _QuantizedOperand(tuple(chain), operand, product, int(zero)) if _is_fixed(node) else None


def _is_fixed(node: Node) -> bool:
    value = node.meta["val"]
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _source(node: Node, terms: int) -> tuple[Node, int] | None:
    """What ``node`` is made of, one step nearer to codes, and the dimension of terms there."""
    name, first = name_of(node), node.args[0] if node.args else None
    if name in TRANSPOSES and isinstance(first, Node):
        return first, _before_transpose(node, terms)
    if name == "convert_element_type" and isinstance(first, Node):
        integers = dtype_of(node) in (torch.float32, *INTEGERS) and dtype_of(first) in (
            *CODES,
            *INTEGERS,
        )
        return (first, terms) if integers else None
    if name == "mul" and dtype_of(node) == torch.float32:
        return next(
            ((own, terms) for own, by in _both_ways(node) if _scales(node, own, by, terms)), None
        )
    whole = name in SHIFTS and len(node.args) == 2 and isinstance(node.args[1], int | float)
    return (first, terms) if whole and not node.kwargs and isinstance(first, Node) else None


def _before_transpose(node: Node, terms: int) -> int:
    """Where a dimension of a permuted tensor was before."""
    rank = len(shape_of(node))
    order = list(range(rank))
    if name_of(node) == "permute":
        order = [int(d) % rank for d in node.args[1]]  # type: ignore[union-attr, arg-type]
    else:
        a, b = (int(d) % rank for d in (node.args[1:] or (0, 1)))  # type: ignore[arg-type]
        order[a], order[b] = order[b], order[a]
    return order[terms]


def _both_ways(node: Node) -> Iterator[tuple[Node, object]]:
    for own, by in (node.args, node.args[::-1]):
        if isinstance(own, Node):
            yield own, by


def _scales(node: Node, own: Node, by: object, terms: int) -> bool:
    """Whether ``node`` is as large as ``own``, and what else it is made of, ``by``, is the same along its terms."""
    if not is_tensor(own) or dtype_of(own) != torch.float32 or shape_of(own) != shape_of(node):
        return False
    if not isinstance(by, Node):
        return isinstance(by, int | float)
    if not is_tensor(by) or dtype_of(by) != torch.float32 or not _is_fixed(by):
        return False
    if by.meta["val"].device != node.meta["val"].device:
        return False
    shape, scales = shape_of(own), shape_of(by)
    place = terms - (len(shape) - len(scales))
    return place < 0 or scales[place] == 1
