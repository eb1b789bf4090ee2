"""What surrounds a run of a model whose graphs are captured: no caches, a backward pass, its state put back."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch


def run_backward(outputs: Any) -> None:
    """The backward pass from the sum of all outputs with a gradient."""
    from torch.utils import _pytree as pytree

    total = None
    for value in pytree.tree_leaves(outputs):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            total = value.sum() if total is None else total + value.sum()
    if total is not None:
        total.backward()


@contextlib.contextmanager
def without_torch_caches() -> Iterator[None]:
    """Within it, torch compiles everything anew and keeps nothing."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config

    with (
        warnings.catch_warnings(),
        config.patch(force_disable_caches=True),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        warnings.filterwarnings("ignore", message=".*force disabled")
        yield


@contextlib.contextmanager
def state_restored(model: Any) -> Iterator[None]:
    """Put gradients and buffers back as they were."""
    if not isinstance(model, torch.nn.Module):
        yield
        return
    gradients = {p: p.grad for p in model.parameters()}
    buffers = {b: b.detach().clone() for b in model.buffers()}
    for parameter in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
