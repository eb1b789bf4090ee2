"""What kind of task a region is: by its operators, whatever its sizes and dtypes."""

from __future__ import annotations

from typing import Any

from cuda_agent_backend.agent.memory.task_distance import structure_digest
from sandbox.task.task import Task

POINTWISE = "pointwise"


def family_of(task: Task) -> str:
    """The operators that are neither pointwise nor views nor make a tensor of nothing, sorted, each once.

    That is what decides a kernel's shape: ``amax+sum`` is any softmax, ``addmm`` any linear layer with what follows it.
    """
    return "+".join(sorted({n.name for n in task.nodes if _shapes(n.op)})) or POINTWISE


def structure_of(task: Task) -> str:
    """A digest of the graph without sizes and dtypes."""
    return structure_digest(task)[:24]


def dtype_of(task: Task) -> str:
    """Of the first input of floating numbers; of the first one where there is none."""
    dtypes = [spec.dtype for spec in task.inputs]
    return next((d for d in dtypes if "float" in d), dtypes[0] if dtypes else "none")


def _shapes(name: str) -> bool:
    import torch

    operator = _found(name)
    if operator is None:
        return True
    if torch.Tag.pointwise in operator.tags or operator.is_view:
        return False
    return any(_is_tensor(a.type) for a in operator._schema.arguments)


def _is_tensor(kind: object) -> bool:
    return "Tensor" in str(kind)


def _found(name: str) -> Any:
    """The operator of a task's node such as aten.sum.dim_IntList; None where this torch has none of that name."""
    import torch

    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, space), packet, None)
    return getattr(found, overload or "default", None)
