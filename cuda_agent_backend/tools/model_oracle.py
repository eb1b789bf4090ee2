"""A whole model's outputs in float64, by which those of compiled models are judged."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Widened(TorchDispatchMode):
    """Within it, what asks for float32 gets float64: models that cast inside, as Llama's norms do, stay in float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator with every dtype argument widened."""
        args, kwargs = pytree.tree_map(_widen, (args, kwargs or {}))
        return func(*args, **kwargs)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def in_float64(value: Any) -> Any:
    """A copy with every floating tensor in float64: a module, or tensors in tuples, lists and dictionaries."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()

    def wide(x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_floating_point():
            return x.detach().double().requires_grad_(x.requires_grad)
        return x

    return pytree.tree_map(wide, value)


def oracle(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """The model's outputs, computed in float64 without gradients."""
    with torch.no_grad(), Widened(), _default(torch.float64):
        return tensors(in_float64(model)(*in_float64(tuple(inputs))))


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """What models make without a dtype has this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a model's result, in order."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]


def device_of(inputs: Sequence[Any]) -> str:
    """The type of the device that a model's inputs are on; that of the first tensor."""
    return next((x.device.type for x in tensors(tuple(inputs))), "cpu")
