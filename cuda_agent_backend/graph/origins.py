"""The operators that a graph's own were made from, after which Inductor names kernels.

The name is part of a Triton kernel's text, and by its text torch keeps what it compiled of a kernel and which of its
configurations was the fastest. A graph that is built again from its task knows nothing of where its operators came
from; with these names Inductor writes for it what it writes for the original, so that what was measured is what runs.
Configurations differ in how they sum: code that was chosen again may be less exact than what was accepted.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

ORIGIN = "original_aten"
"""Under which torch keeps it in a node's ``meta``."""


def origins(graph: Graph) -> tuple[str, ...]:
    """The name of what each operator of a post-grad graph was made from, in order; "" where it is not known."""
    return tuple(_name(node.meta.get(ORIGIN)) for node in _calls(graph))


def restore(graph: Graph, names: Sequence[str]) -> None:
    """Say of a graph's operators, in place, what `origins` said of those of its original.

    What a graph's task leaves out, writes to its inputs, are the last operators of the original.
    """
    from sandbox.graph.operators import resolve_operator
    from sandbox.task.task import TaskError

    for node, name in zip(_calls(graph), names, strict=False):
        try:
            node.meta[ORIGIN] = resolve_operator(name) if name else None
        except (
            TaskError,
            ValueError,
        ):  # an operator of the user's own: its kernels have another name
            continue


def _calls(graph: Graph) -> list[Node]:
    """Operators, without the writes to inputs, and without the choice of one of several results."""
    left_out = (operator.getitem, torch.ops.aten.copy_.default)
    return [n for n in graph.nodes if n.op == "call_function" and n.target not in left_out]


def _name(origin: Any) -> str:
    return str(origin) if isinstance(origin, torch._ops.OpOverload) else ""
