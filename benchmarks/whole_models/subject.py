"""A model to be measured: how it is made, called and trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
SEED = 11
KEPT_IN_FLOAT32 = "inv_freq"
"""Buffers that no dtype changes: rotary frequencies in half precision turn places into others."""


@dataclass(frozen=True)
class Made:
    """A model in evaluation mode, without dropout, and what it is called with.

    inputs: of one call, which returns one tensor. target, loss: what a training step compares that with. samples:
    whether the leading axis of inputs and outputs counts samples that do not depend on each other.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    target: Tensor
    loss: Loss
    samples: bool = True


@dataclass(frozen=True)
class Subject:
    """A model by name. make: of the size that people run, or (toy) a tiny one with the same code.

    kinds: "inference", "training", or both.
    """

    name: str
    says: str
    make: Callable[[bool], Made]
    kinds: tuple[str, ...] = ("inference", "training")


class Called(nn.Module):
    """Calls a model by names of arguments and returns one tensor of its result."""

    def __init__(
        self, model: nn.Module, arguments: tuple[str, ...], result: str, **fixed: Any
    ) -> None:
        super().__init__()
        self.model, self.arguments, self.result, self.fixed = model, arguments, result, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        """inputs: one for each of the arguments."""
        named = dict(zip(self.arguments, inputs, strict=True))
        out: Tensor = getattr(self.model(**named, **self.fixed), self.result)
        return out


class WithLoss(nn.Module):
    """A model and its loss, as one module that is compiled whole for training."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, target: Tensor, *inputs: Tensor) -> Tensor:
        """The loss, a number."""
        return self.loss(self.model(*inputs), target)


def build(subject: Subject, device: str, dtype: torch.dtype, *, toy: bool = False) -> Made:
    """The same numbers in every process, on the device and in the dtype."""
    torch.manual_seed(SEED)
    with torch.device(device):
        made = subject.make(toy)
    inputs = tuple(_cast(x, dtype) for x in made.inputs)
    model = in_dtype(made.model.eval(), dtype)
    return Made(model, inputs, _cast(made.target, dtype), made.loss, made.samples)


def for_reference(model: nn.Module) -> nn.Module:
    """The model, with code that also takes float64: grouped products of experts do not."""
    for module in model.modules():
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")
    return model


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with its floating tensors in a dtype, but for `KEPT_IN_FLOAT32`."""
    kept = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith(KEPT_IN_FLOAT32)
    ]
    model.to(dtype)
    for module, name, buffer in kept:
        module._buffers[name] = buffer
    return model


def of_words(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of logits (batch, tokens, words) against words (batch, tokens)."""
    return functional.cross_entropy(output.flatten(0, 1).float(), target.flatten())


def of_classes(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of logits (batch, classes) against classes (batch)."""
    return functional.cross_entropy(output.float(), target)


def of_values(output: Tensor, target: Tensor) -> Tensor:
    """The mean square of the difference of two tensors of one shape."""
    return functional.mse_loss(output.float(), target.float())


def of_pairs(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy both ways of scores (batch, batch) against which belongs to which (batch)."""
    scores = output.float()
    one, other = (functional.cross_entropy(each, target) for each in (scores, scores.T))
    return (one + other) / 2


def of_clicks(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy of logits against targets from 0 to 1, both (batch)."""
    return functional.binary_cross_entropy_with_logits(output.float(), target.float())
