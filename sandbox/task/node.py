"""Calls of operators: the nodes of a task, and the references between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.task.arguments import Arg, InputRef, NodeRef, TaskError

Ref = NodeRef | InputRef
OWN = r"run_\d+_\d+|lstm|gru|rnn_tanh|rnn_relu"
"""Operators of ours: kernels, and those of `sandbox.graph.recurrent_ops`."""
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


def references(arg: Arg) -> list[Ref]:
    """All references inside an argument, in order."""
    if isinstance(arg, NodeRef | InputRef):
        return [arg]
    if isinstance(arg, tuple):
        return [found for item in arg for found in references(item)]
    return []
