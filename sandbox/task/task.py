"""A task: a region of a graph in canonical form, which any process can rebuild and run.

A task names its operators, its arguments and the metadata of its inputs and outputs; it holds no
tensor values and no code. Two regions that compute the same thing in the same layout have the same
JSON, so its digest is a key. `sandbox.graph.build` makes the graph that a task stands for.

What a task does not hold: the torch version (provenance, kept beside it), the device index,
symbolic sizes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

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
from sandbox.task.codec import decode, encode
from sandbox.task.node import Node, Ref, references
from sandbox.task.specs import TensorSpec

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

TARGETS = ("cpu", "cuda")


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
        return encode(self.target, self.inputs, self.nodes, self.outputs, self.output_specs)

    @staticmethod
    def from_json(text: str) -> Task:
        """The task that `to_json` wrote. Raises `TaskError` on anything malformed."""
        return Task(*decode(text))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()
