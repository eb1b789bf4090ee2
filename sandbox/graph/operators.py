"""The torch operators that a task names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.task.arguments import TaskError

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload


def resolve_operator(op: str) -> OpOverload:
    """The operator of a name such as "aten.add.Tensor". Raises `TaskError` when this torch does
    not have it.
    """
    import torch

    namespace, name, overload = op.split(".")
    if namespace == "cuda_agent":
        from sandbox.graph.recurrent_ops import define_recurrent
        from sandbox.launcher import define_ops

        define_ops()
        define_recurrent()
    elif namespace in ("inductor", "prims") or name.startswith("inductor_"):
        import torch._inductor.inductor_prims
        import torch._inductor.lowering
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError):
        raise TaskError(f"torch {torch.__version__} has no operator {op}") from None
    if not isinstance(found, torch._ops.OpOverload):
        raise TaskError(f"{op} is not an operator")
    return found


def device_of(target: str) -> torch.device:
    """The device of a target: "cpu", or the first visible CUDA device."""
    import torch

    return torch.device("cpu") if target == "cpu" else torch.device("cuda", 0)
