"""A region: a part of a graph that one kernel may replace."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True)
class Region:
    """A part of a graph: `nodes` in graph order, what they read from outside, what is needed outside.

    `reason` says why it is left to Inductor, or is None. `moved` counts the bytes of inputs and outputs. `rest` is what
    is offered where no kernel wins for all of it: what is beside its matrix product, which a library then runs.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    target: str
    moved: int
    reason: str | None = None
    rest: Region | None = None
