"""Operators that Inductor hands to a library or treats as one -> operators whose lowering gives plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.codegen.lowering.expand_convolution import call, convolution
from cuda_agent_backend.codegen.lowering.expand_gradients import gradient
from cuda_agent_backend.graph.convolution_grad import is_gradient, is_sum_of_products
from cuda_agent_backend.graph.edit import argument, dtype_of, is_float, name_of, replace
from cuda_agent_backend.graph.gathers import bag_length
from cuda_agent_backend.graph.matrix_product import PRODUCT_TYPES
from cuda_agent_backend.operators.masked_operands import VIEWS, masked_operand
from cuda_agent_backend.operators.products import is_convolution, is_depthwise

aten = torch.ops.aten

LARGEST = 2
"""How an embedding bag says that it wants the largest of its rows; 0 and 1 are sum and mean."""
STORED = "stored"
"""Metadata of nodes that are to be in memory: operands of products that read them more often than once."""
READ_THROUGH = frozenset(
    (
        "mul",
        "div",
        "sub",
        "add",
        "where",
        "clone",
        "_to_copy",
        "convert_element_type",
        "masked_fill",
    )
)
"""What is done for each element that kernels of products do while they copy an operand, in some combinations; masks,
copies and whatever only moves elements besides."""
MOVING = (*VIEWS, "reshape", "clone", "convert_element_type", "_to_copy")
"""What only moves or converts elements."""
REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "max", "min", "var", "var_mean")
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


def expand(graph: Graph, target: str) -> None:
    """Rewrite ``graph`` (with metadata) in place; of products and convolutions those of `PRODUCT_TYPES` only."""
    _expand_online_softmax(graph)
    _expand_products(graph, target)
    _expand_bags(graph)
    _expand_floors(graph)
    _expand_gradients(graph, target)
    for node in list(graph.nodes):
        if is_depthwise(node):
            continue
        if is_convolution(node) and node.meta["val"].dtype in PRODUCT_TYPES[target]:
            with graph.inserting_before(node):
                made = convolution(graph, node)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _expand_gradients(graph: Graph, target: str) -> None:
    """Write gradients of convolutions as convolutions, which are then written like any other, and sums of products."""
    for node in list(graph.nodes):
        if not is_gradient(node) or not is_sum_of_products(node):
            continue
        if dtype_of(node) in PRODUCT_TYPES[target]:
            with graph.inserting_before(node):
                replace(node, gradient(graph, node))
    graph.eliminate_dead_code()


def _expand_products(graph: Graph, target: str) -> None:
    """Write matrix products as a broadcast multiplication and a sum, whose large terms exist in loops only."""
    for node in list(graph.nodes):
        if node.target in PRODUCTS and node.meta["val"].dtype in PRODUCT_TYPES[target]:
            if target == "cuda":
                _store_operands(node)
            with graph.inserting_before(node):
                made = _with_addend(graph, node)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            if len(node.args) == 3 and node.meta["val"].dtype.itemsize == 2:
                made.meta[STORED] = _is_gathered(made)


def _store_operands(product: Node) -> None:
    """Have masked and computed operands of ``product`` in memory: it reads them more often than once, and copies are
    wide there."""
    for operand in product.args[-2:]:
        assert isinstance(operand, Node)
        while name_of(operand) in (*VIEWS, "reshape"):
            operand = operand.all_input_nodes[0]
        if masked_operand(operand) is not None or _is_computed(operand):
            operand.meta[STORED] = True


def _is_gathered(product: Node) -> bool:
    """Whether more reads a product with its addend than works on one element at a time. It is rounded once where it is
    in memory; the sum without the addend, rounded there, is off by more where the two cancel each other."""
    waiting, seen = [product], {product}
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output" or user in seen:
                continue
            pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
            if not pointwise and name_of(user) not in MOVING:
                return True
            seen.add(user)
            waiting.append(user)
    return False


def _is_computed(operand: Node) -> bool:
    """Whether more is done for each element than kernels of products do; sums are in memory in any case."""
    waiting, seen = [operand], {operand}
    while waiting:
        node = waiting.pop()
        if node.op != "call_function" or node.target in PRODUCTS or not is_float(node):
            continue
        pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        if pointwise and name_of(node) not in READ_THROUGH:
            return True
        if name_of(node) not in REDUCTIONS:
            waiting += [read for read in node.all_input_nodes if read not in seen]
            seen.update(node.all_input_nodes)
    return False


def _with_addend(graph: Graph, node: Node) -> Node:
    *addend, left, right = node.args
    result = _sum_of_products(graph, left, right)
    if not addend:
        return result
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    if alpha != 1:
        result = call(graph, aten.mul.Tensor, result, alpha)
    if beta == 0:  # eager does not even read the addend, so that a NaN in it is nothing
        return result
    scaled = addend[0] if beta == 1 else call(graph, aten.mul.Tensor, addend[0], beta)
    return call(graph, aten.add.Tensor, scaled, result)


def _sum_of_products(graph: Graph, left: object, right: object) -> Node:
    assert isinstance(left, Node)
    batched = left.meta["val"].dim() - 2
    rows = call(graph, aten.unsqueeze.default, left, batched + 2)
    columns = call(graph, aten.unsqueeze.default, right, batched)
    terms = call(graph, aten.mul.Tensor, rows, columns)
    return call(graph, aten.sum.dim_IntList, terms, [batched + 1])


def _expand_online_softmax(graph: Graph) -> None:
    """Write out maximum and sum, which Inductor joins on GPUs: our passes over a row join what pays."""
    for node in graph.nodes:
        if node.op != "call_function" or "prepare_softmax_online" not in str(node.target):
            continue
        with graph.inserting_before(node):
            results = _maximum_and_sum(graph, *node.args)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _maximum_and_sum(graph: Graph, x: Node, dim: int) -> tuple[Node, ...]:
    aten, example = torch.ops.aten, x.meta["val"]
    kept = [1 if i == dim % example.dim() else n for i, n in enumerate(example.shape)]
    row = example.new_empty(kept)

    def call(target: Any, value: torch.Tensor, *args: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta["val"] = value
        return made

    largest = call(aten.amax.default, row, x, [dim], True)
    powers = call(aten.exp.default, example, call(aten.sub.Tensor, example, x, largest))
    return largest, call(aten.sum.dim_IntList, row, powers, [dim], True)


def _expand_bags(graph: Graph) -> None:
    """Write bags of as many rows of a table as rows and a reduction over each bag."""
    for node in list(graph.nodes):
        length = bag_length(node)
        if length is None:
            continue
        with graph.inserting_before(node):
            made = _bags(graph, node, length)
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(made)
                graph.erase_node(user)
        if not node.users:
            graph.erase_node(node)


def _bags(graph: Graph, node: Node, length: int) -> Node:
    weight, indices, mode = (argument(node, name) for name in ("weight", "indices", "mode"))
    bags = call(graph, aten.view.default, indices, [-1, length])
    rows = call(graph, aten.embedding.default, weight, bags)
    if mode != LARGEST:
        return call(graph, (aten.sum.dim_IntList, aten.mean.dim)[mode], rows, [1])
    # a NaN is the largest where it comes first, and nowhere else
    first = call(graph, aten.select.int, rows, 1, 0)
    numbers = _without_nan(graph, rows, -math.inf)
    largest = call(graph, aten.amax.default, numbers, [1])
    nan = call(graph, aten.isnan.default, first)
    return call(graph, aten.where.self, nan, first, largest)


def _expand_floors(graph: Graph) -> None:
    """Write divisions that round down as eager has them, from the exact remainder: a quotient that is rounded first may
    be rounded up to the number that it is just below."""
    for node in list(graph.nodes):
        floors = name_of(node) == "div" and node.kwargs.get("rounding_mode") == "floor"
        dtype = node.meta["val"].dtype if floors else torch.bool
        if dtype.is_floating_point:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            with graph.inserting_before(node):
                made = _floor(graph, *(_tensor(graph, x, node, wide) for x in node.args))
                replace(
                    node, call(graph, torch.ops.prims.convert_element_type.default, made, dtype)
                )
            graph.erase_node(node)


def _tensor(graph: Graph, x: Any, like: Node, dtype: torch.dtype) -> Node:
    if isinstance(x, Node):
        return call(graph, torch.ops.prims.convert_element_type.default, x, dtype)
    return _filled(graph, x, like.meta["val"].to(dtype))


def _floor(graph: Graph, x: Node, by: Node) -> Node:
    rest = call(graph, aten.fmod.Tensor, x, by)
    whole = call(graph, aten.div.Tensor, call(graph, aten.sub.Tensor, x, rest), by)
    turned = call(graph, aten.ne.Tensor, *(call(graph, aten.lt.Scalar, n, 0) for n in (rest, by)))
    below = call(graph, aten.logical_and.default, call(graph, aten.ne.Scalar, rest, 0), turned)
    whole = call(graph, aten.where.self, below, call(graph, aten.sub.Tensor, whole, 1.0), whole)
    floor = call(graph, aten.floor.default, whole)
    short = call(graph, aten.gt.Scalar, call(graph, aten.sub.Tensor, whole, floor), 0.5)
    floor = call(graph, aten.where.self, short, call(graph, aten.add.Tensor, floor, 1.0), floor)
    quotient = call(graph, aten.div.Tensor, x, by)
    # the sign of a zero is the quotient's, and what is divided by zero has no remainder
    zero = _filled(graph, 0.0, x.meta["val"])
    nothing = call(graph, aten.copysign.Tensor, zero, quotient)
    floor = call(graph, aten.where.self, call(graph, aten.eq.Scalar, whole, 0), nothing, floor)
    return call(graph, aten.where.self, call(graph, aten.eq.Scalar, by, 0), quotient, floor)


def _without_nan(graph: Graph, x: Node, instead: float) -> Node:
    value = x.meta["val"]
    nan = call(graph, aten.isnan.default, x)
    return call(graph, aten.where.self, nan, _filled(graph, instead, value), x)


def _filled(graph: Graph, number: float, value: torch.Tensor) -> Node:
    """A number in the dtype of a value."""
    made = graph.call_function(
        aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device}
    )
    made.meta["val"] = value.new_full((), number)
    return made
