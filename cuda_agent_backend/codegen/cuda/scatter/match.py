"""Scatters among the tasks: recognised as one operator, for loops whose results collide are no loop nest."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.graph.canonical import NotATask, linear
from cuda_agent_backend.graph.edit import argument, name_of
from cuda_agent_backend.graph.gathers import overlap_add
from cuda_agent_backend.operators.scatters import (
    PUTS,
    SCATTERS,
    VIEWS_OF_AN_INDEX,
    is_scatter,
    scatter_operands,
)
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

FULL = torch.ops.aten.full.default
IN_ORDER: dict[str, Any] = {"memory_format": torch.contiguous_format}
Steps = tuple[int, int, int]
"""Elements between neighbours before, along and behind the dimension of the scatter."""


@dataclass(frozen=True)
class Operand:
    """An input and its steps, or a constant that every element is."""

    input: int | None
    steps: Steps
    constant: float = 0.0


@dataclass(frozen=True)
class Produced:
    """Values that ``task`` makes, in row-major order, of the inputs with the numbers ``inputs``."""

    task: Task
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Scatter:
    """``out[o, index[o, k, f], f]`` is joined with ``source[o, k, f]``, having been ``self``: float32.

    ``how``: "sum", "amax" or "amin". Sizes: ``outer`` of o, ``count`` of k, ``size`` of places, ``inner`` of f.
    ``wraps``: whether an index below zero counts from the end. ``mask``: where it is false, nothing goes anywhere.
    """

    how: str
    outer: int
    count: int
    size: int
    inner: int
    into: Operand
    index: Operand
    source: Operand | Produced
    out: Steps
    wraps: bool = False
    mask: Operand | None = None


def has_scatter(task: Task) -> bool:
    """Whether a task for a GPU has a scatter in it. Sums of overlapping windows are puts as well, but need none."""
    if task.target != "cuda":
        return False
    names = {node.name for node in task.nodes}
    if not names.isdisjoint(SCATTERS):
        return True
    if names.isdisjoint(PUTS):
        return False
    nodes = [n for n in _graph(task).nodes if name_of(n) in PUTS]
    return any(is_scatter(node) and overlap_add(node) is None for node in nodes)


def scatter_of(task: Task) -> Scatter:
    """The scatter that ``task`` is.

    Raises:
        Unsupported: it is more than that, or of a form that the kernels do not know, with the reason.
    """
    graph = _graph(task)
    (output,) = graph.find_nodes(op="output")
    results = output.args[0]
    node = results[0] if isinstance(results, list | tuple) and len(results) == 1 else None
    if not isinstance(node, Node) or not is_scatter(node):
        raise Unsupported("a scatter of a form for which there is no kernel")
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    found = scatter_operands(node)
    assert found is not None
    shape, dim = found.into.meta["val"].shape, found.dim

    def operand(given: Node, spread: int = 1) -> Operand:
        if name_of(given) == "full":
            return Operand(None, (0, 0, 0), float(argument(given, "fill_value")))
        value, root = given.meta["val"], given
        while root.op == "call_function" and root.target in VIEWS_OF_AN_INDEX:
            root = root.all_input_nodes[0]
        if root.op != "placeholder" or value.storage_offset():
            raise Unsupported("a scatter together with other operators")
        first = 0 if found.wraps and given in (found.index, found.mask) else dim
        return Operand(inputs.index(root), _steps(value.shape, value.stride(), first, spread))

    own, out = found.source.meta["val"].shape, task.output_specs[0]
    made = _made(found.source, graph)
    return Scatter(
        found.how,
        math.prod(shape[:dim]), math.prod(own[dim : dim + found.spread]), shape[dim], math.prod(shape[dim + 1 :]),
        operand(found.into), operand(found.index, found.spread),
        operand(found.source, found.spread) if made is None else made,
        _steps(out.shape, out.stride, dim),
        found.wraps,
        None if found.mask is None else operand(found.mask, found.spread),
    )  # fmt: skip


def _made(source: Node, graph: Graph) -> Produced | None:
    """What makes the values; None where they are in memory, or constant.

    Raises:
        Unsupported: no task makes them, with the reason.
    """
    own = {source}
    for node in reversed(graph.nodes):
        if node.op == "call_function" and any(user in own for user in node.users):
            own.add(node)
    if all(node.target in (*VIEWS_OF_AN_INDEX, FULL) for node in own if node.op != "placeholder"):
        return None
    with graph.inserting_after(source):
        copy = graph.call_function(torch.ops.aten.clone.default, (source,), IN_ORDER)
    copy.meta["val"] = source.meta["val"].clone(**IN_ORDER)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    read = [n for n in inputs if any(user in own for user in n.users)]
    task = linear([n for n in graph.nodes if n in {*own, copy}], read, [copy], "cpu")
    if isinstance(task, NotATask):
        raise Unsupported(task.reason)
    return Produced(replace(task, target="cuda"), tuple(map(inputs.index, read)))


def _graph(task: Task) -> Graph:
    """On the CPU, for without a GPU some puts say nothing of their shape."""
    graph: Graph = build_graph(replace(task, target="cpu")).graph
    return graph


def _steps(shape: tuple[int, ...], stride: tuple[int, ...], dim: int, spread: int = 1) -> Steps:
    """spread: how many dimensions from ``dim`` on are taken for one."""
    behind = dim + spread
    return (
        _as_one(shape[:dim], stride[:dim]),
        _as_one(shape[dim:behind], stride[dim:behind]),
        _as_one(shape[behind:], stride[behind:]),
    )


def _as_one(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """The stride of several dimensions as one."""
    dims = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    for (_, outer), (n, inner) in itertools.pairwise(dims):
        if outer != n * inner:
            raise Unsupported("a scatter along a dimension of a tensor that is not dense beside it")
    return dims[-1][1] if dims else 0
