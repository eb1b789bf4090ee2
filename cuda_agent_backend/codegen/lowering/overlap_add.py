"""Sums of overlapping windows turned round: each element reads the windows that lie over it, and nothing collides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ir import Pointwise
from torch._inductor.virtualized import ops
from torch.fx import Node
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from cuda_agent_backend.graph.gathers import Cover, OverlapAdd, overlap_add


def lowered(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an accumulating index_put that is such a sum; None for anything else."""
    form = overlap_add(node)
    if form is None:
        return None
    into, values = args[0], args[2]
    return _sum_of_windows(form, into, values)


def _sum_of_windows(form: OverlapAdd, into: Any, values: Any) -> Any:
    start, load, dtype = into.make_loader(), values.make_loader(), into.get_dtype()
    sum_dtype = dtype if dtype == torch.float64 else torch.float32

    def element(index: Sequence[Any]) -> Any:
        total = ops.to_dtype(start(index), sum_dtype)
        for numbers in itertools.product(*(range(c.terms) for c in form.covers)):
            total = ops.add(total, ops.to_dtype(_term(form, load, index, numbers), sum_dtype))
        return ops.to_dtype(total, dtype)

    return Pointwise.create(
        device=into.get_device(), dtype=dtype, inner_fn=element, ranges=into.get_size()
    )


def _term(form: OverlapAdd, load: Any, index: Sequence[Any], numbers: Sequence[int]) -> Any:
    """One element of the ``numbers``-th window from the last in each dimension, 0 beside it."""
    at: list[Any] = [sympy.S.Zero] * form.dims
    conditions: list[Any] = []
    for cover, number, y in zip(form.covers, numbers, index[form.leading :], strict=True):
        conditions += _place(cover, number, sympy.sympify(y), at)
    place = [*index[: form.leading], *at]
    if not conditions:
        return load(place)
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = ops.and_(mask, condition)
    return ops.masked(mask, lambda: load(place), 0.0)


def _place(cover: Cover, number: int, y: Any, at: list[Any]) -> list[Any]:
    """Sets where to read in dimensions of the values; returns what must hold."""

    def less(a: Any, b: Any) -> Any:
        return ops.lt(
            ops.index_expr(sympy.sympify(a), torch.int64),
            ops.index_expr(sympy.sympify(b), torch.int64),
        )

    place = ModularIndexing(y, 1, cover.stride) + cover.stride * number
    window = FloorDiv(y, cover.stride) - number
    at[cover.place] = place
    if cover.window is not None:
        at[cover.window] = window
    conditions = [less(window, cover.windows)]
    if number:
        conditions.append(less(-1, window))
    if cover.places < cover.stride * (number + 1):
        conditions.append(less(place, cover.places))
    return conditions
