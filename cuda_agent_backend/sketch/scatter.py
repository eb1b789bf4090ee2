"""Scatters among the tasks: recognised as one operator, for loops whose results collide are no loop nest."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torch.fx import Node

from cuda_agent_backend.operators import SCATTERS, VIEWS_OF_AN_INDEX, is_scatter
from cuda_agent_backend.rewrite.edit import argument, name_of
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.task import Task

Steps = tuple[int, int, int]
"""Elements between neighbours before, along and behind the dimension of the scatter."""


@dataclass(frozen=True)
class Operand:
    """An input and its steps, or a constant that every element is."""

    input: int | None
    steps: Steps
    constant: float = 0.0


@dataclass(frozen=True)
class Scatter:
    """``out[o, index[o, k, f], f]`` is joined with ``source[o, k, f]``, having been ``self``: float32.

    ``how``: "sum", "amax" or "amin". Sizes: ``outer`` of o, ``count`` of k, ``size`` of places, ``inner`` of f.
    """

    how: str
    outer: int
    count: int
    size: int
    inner: int
    into: Operand
    index: Operand
    source: Operand
    out: Steps


def has_scatter(task: Task) -> bool:
    return task.target == "cuda" and any(node.name in SCATTERS for node in task.nodes)


def scatter_of(task: Task) -> Scatter:
    """The scatter that ``task`` is.

    Raises:
        Unsupported: it is more than that, or of a form that the kernels do not know, with the reason.
    """
    graph = task.to_graph_module().graph
    (output,) = graph.find_nodes(op="output")
    results = output.args[0]
    node = results[0] if isinstance(results, list | tuple) and len(results) == 1 else None
    if not isinstance(node, Node) or not is_scatter(node):
        raise Unsupported("a scatter of a form for which there is no kernel")
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    into, index, source = (argument(node, n) for n in ("self", "index", "src"))
    shape, many = into.meta["val"].shape, index.meta["val"].shape
    dim = argument(node, "dim") % len(shape)

    def operand(given: Node) -> Operand:
        if name_of(given) == "full":
            return Operand(None, (0, 0, 0), float(argument(given, "fill_value")))
        value, root = given.meta["val"], given
        while root.op == "call_function" and root.target in VIEWS_OF_AN_INDEX:
            root = root.all_input_nodes[0]
        if root.op != "placeholder" or value.storage_offset():
            raise Unsupported("a scatter together with other operators")
        return Operand(inputs.index(root), _steps(value.shape, value.stride(), dim))

    how = "sum" if name_of(node) == "scatter_add" else str(argument(node, "reduce"))
    return Scatter(
        how,
        math.prod(shape[:dim]), many[dim], shape[dim], math.prod(shape[dim + 1 :]),
        operand(into), operand(index), operand(source),
        _steps(task.output_specs[0].shape, task.output_specs[0].stride, dim),
    )  # fmt: skip


def _steps(shape: tuple[int, ...], stride: tuple[int, ...], dim: int) -> Steps:
    return (
        _as_one(shape[:dim], stride[:dim]),
        stride[dim] if shape[dim] != 1 else 0,
        _as_one(shape[dim + 1 :], stride[dim + 1 :]),
    )


def _as_one(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """The stride of several dimensions as one."""
    dims = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    for (_, outer), (n, inner) in itertools.pairwise(dims):
        if outer != n * inner:
            raise Unsupported("a scatter along a dimension of a tensor that is not dense beside it")
    return dims[-1][1] if dims else 0
