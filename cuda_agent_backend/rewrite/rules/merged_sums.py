"""A sum of a sum is one sum, a mean of a mean one mean; linear operators may lie between.

It holds always: terms may be added in any order, and the number of terms of each sum is known. Maxima of maxima and
minima of minima over further dimensions are merged too, which is exact.
"""

from __future__ import annotations

import math

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    aten,
    calls,
    is_float,
    is_tensor,
    name_of,
    reduced_dims,
    replace,
    shape_of,
    without,
)
from cuda_agent_backend.rewrite.linear import move_sums
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.terms import Dims, Paying, Plain, Scaled, Shaped, Term

LEAST = 1 << 20
"""Products from which on two kernels, which read along memory, take less time than one."""
EXTREMA = {"amax": aten.amax.default, "amin": aten.amin.default}


def summed_sum(node: Node, dims: Dims) -> Term | None:
    """The leaf: a sum or a mean that is summed further."""
    if name_of(node) not in ("sum", "mean") or not is_float(argument(node, "self")):
        return None
    source = argument(node, "self")
    if _lies_both_ways(source, reduced_dims(node)):
        return None
    term: Term = Plain(source, _all_dims(node, dims))
    if name_of(node) == "mean":
        count = math.prod(shape_of(source)[d] for d in reduced_dims(node))
        term = Scaled(term, count, True)
    return Paying(Shaped(term, without(shape_of(node), dims)))


def _lies_both_ways(node: Node, dims: Dims) -> bool:
    """Whether a value is many products of what lies along its sums in memory with what lies across them.

    As sums of their own they read both along memory; in one sum of all, either would be read a number at a time.
    """
    if name_of(node) != "mul" or math.prod(shape_of(node)) < LEAST:
        return False
    read = node.all_input_nodes
    if len(read) != 2 or any(shape_of(x) != shape_of(node) for x in read if is_tensor(x)):
        return False
    return {_neighbours(x) in dims for x in read} == {True, False}


def _neighbours(node: Node) -> int:
    """The dimension along which a value's neighbours in memory lie."""
    value = node.meta["val"]
    return min(range(value.dim()), key=lambda d: (value.shape[d] == 1, value.stride(d)))


def _all_dims(node: Node, dims: Dims) -> Dims:
    """The dimensions of a reduction's operand that are gone once these of its result are reduced too."""
    own = reduced_dims(node)
    if argument(node, "keepdim"):
        return tuple(sorted({*own, *dims}))
    kept = [d for d in range(len(shape_of(argument(node, "self")))) if d not in own]
    return tuple(sorted({*own, *(kept[d] for d in dims)}))


def _merge_extrema(graph: Graph) -> bool:
    merged = False
    for node in calls(graph, *EXTREMA):
        inner = argument(node, "self")
        if name_of(inner) != name_of(node) or len(inner.users) != 1:
            continue
        at = Editor(graph, node)
        dims = _all_dims(inner, reduced_dims(node))
        made = at.call(EXTREMA[name_of(node)], argument(inner, "self"), list(dims))
        replace(node, at.shaped(made, shape_of(node)))
        merged = True
    return merged


def apply(graph: Graph) -> bool:
    return move_sums(graph, summed_sum) | _merge_extrema(graph)


RULE = Rule("merged_sums", apply, exact=False)
