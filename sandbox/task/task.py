"""A task: a region of a graph in canonical form, which any process can rebuild and run.

A task names its operators, its arguments and the metadata of its inputs and outputs; it holds no
tensor values and no code. Two regions that compute the same thing in the same layout have the same
JSON, so its digest is a key.

What a task does not hold: the torch version (provenance, kept beside it), the device index,
symbolic sizes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sandbox.task.arguments import (
    Arg,
    Device,
    DType,
    InputRef,
    Layout,
    MemoryFormat,
    NodeRef,
    TaskError,
)
from sandbox.task.specs import TensorSpec

if TYPE_CHECKING:
    import torch

__all__ = [
    "Arg",
    "DType",
    "Device",
    "InputRef",
    "Layout",
    "MemoryFormat",
    "Node",
    "NodeRef",
    "Ref",
    "Task",
    "TaskError",
    "TensorSpec",
    "references",
]

Ref = NodeRef | InputRef
TARGETS = ("cpu", "cuda")
OWN = r"run_\d+_\d+|lstm|gru|rnn_tanh|rnn_relu"
"""Operators of ours: kernels, and those of `recurrent`."""
OP_NAME = re.compile(rf"(aten|prims|inductor)\.\w+\.\w+|cuda_agent\.({OWN})\.default", re.ASCII)


@dataclass(frozen=True)
class Node:
    """One call of an operator.

    `op` is "namespace.name.overload"; `args` are named as in the operator's schema, those equal to
    their default left out.
    """

    op: str
    args: Mapping[str, Arg]

    @property
    def name(self) -> str:
        """The operator without namespace and overload."""
        return self.op.split(".")[1]

    def __post_init__(self) -> None:
        if not OP_NAME.fullmatch(self.op):
            raise TaskError(
                f"{self.op!r} is not an operator that a task may name (aten, prims, inductor)"
            )


@dataclass(frozen=True)
class Task:
    """Inputs, operators in execution order, outputs. Raises `TaskError` on dangling or forward
    references.
    """

    target: str
    inputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    output_specs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise TaskError(f"unknown target {self.target!r}; one of {', '.join(TARGETS)}")
        if not self.outputs:
            raise TaskError("a task needs at least one output")
        if len(self.outputs) != len(self.output_specs):
            raise TaskError(
                f"{len(self.outputs)} outputs but {len(self.output_specs)} output specs"
            )
        for position, node in enumerate(self.nodes):
            for reference in references(tuple(node.args.values())):
                self._check(reference, position, f"node {position} ({node.op})")
        for number, output in enumerate(self.outputs):
            self._check(output, len(self.nodes), f"output {number}")

    def _check(self, reference: Ref, limit: int, where: str) -> None:
        if isinstance(reference, InputRef):
            if not 0 <= reference.index < len(self.inputs):
                raise TaskError(f"{where} refers to input {reference.index} of {len(self.inputs)}")
        elif not 0 <= reference.node < limit:
            raise TaskError(f"{where} refers to node {reference.node}, which is not before it")

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        from sandbox.task.codec import encode

        return encode(self)

    @staticmethod
    def from_json(text: str) -> Task:
        """The task that `to_json` wrote. Raises `TaskError` on anything malformed."""
        from sandbox.task.codec import decode

        return decode(text)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_graph_module(self) -> torch.fx.GraphModule:
        """A fresh post-grad ATen graph: placeholders in the order of inputs, output a tuple, fake
        values on every node.

        Raises `TaskError` when an operator or an argument is unknown to this torch, or when the
        shapes or dtypes that come out differ from `output_specs`.
        """
        from sandbox.task.graph import build

        return build(self)


def references(arg: Arg) -> list[Ref]:
    """All references inside an argument, in order."""
    if isinstance(arg, NodeRef | InputRef):
        return [arg]
    if isinstance(arg, tuple):
        return [found for item in arg for found in references(item)]
    return []
