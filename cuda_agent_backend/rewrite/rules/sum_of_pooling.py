"""The sum over all windows of an average pooling is the sum over all elements, divided by a window's size.

It holds where the windows tile the pooled dimensions: steps as large as windows, no padding, nothing left over. Each
pooled dimension must be summed. Adaptive pooling tiles where the sizes divide.
"""

from __future__ import annotations

import math

from torch.fx import Graph, Node

from cuda_agent_backend.graph.edit import argument, is_float, name_of, shape_of
from cuda_agent_backend.rewrite.linear import move_sums, trace
from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.terms import Dims, Paying, Scaled, Term

POOLINGS = {"avg_pool1d": 1, "avg_pool2d": 2, "avg_pool3d": 3}
ADAPTIVE = {"_adaptive_avg_pool2d": 2, "_adaptive_avg_pool3d": 3}


def summed_pooling(node: Node, dims: Dims) -> Term | None:
    """The leaf: a pooling whose windows are summed."""
    name = name_of(node)
    if name not in POOLINGS and name not in ADAPTIVE:
        return None
    source = argument(node, "self")
    if not is_float(source) or len(shape_of(source)) != len(shape_of(node)):
        return None
    window = _window(node, source)
    if window is None:
        return None
    rank = len(shape_of(node))
    pooled = {rank - len(window) + i for i, size in enumerate(window) if size > 1}
    if not pooled or not pooled <= set(dims):
        return None
    divisor = argument(node, "divisor_override") or math.prod(window)
    return Paying(Scaled(trace(source, dims, summed_pooling), divisor, True))


def _window(node: Node, source: Node) -> tuple[int, ...] | None:
    """The sizes of windows that tile, None where they do not."""
    name = name_of(node)
    count = POOLINGS.get(name) or ADAPTIVE[name]
    before, after = shape_of(source)[-count:], shape_of(node)[-count:]
    if any(old % new for old, new in zip(before, after, strict=True)):
        return None
    window = tuple(old // new for old, new in zip(before, after, strict=True))
    if name in ADAPTIVE:
        return window
    sizes = _each(argument(node, "kernel_size"), count)
    steps = _each(argument(node, "stride"), count) or sizes
    padding = _each(argument(node, "padding", 0), count)
    return window if sizes == steps == window and not any(padding) else None


def _each(value: int | list[int] | None, count: int) -> tuple[int, ...]:
    if value is None or isinstance(value, int):
        return () if value is None else (value,) * count
    listed = tuple(value)
    return listed * count if len(listed) == 1 else listed


def apply(graph: Graph) -> bool:
    return move_sums(graph, summed_pooling)


RULE = Rule("sum_of_pooling", apply, exact=False)
