"""Inputs of a whole graph for its measurement: random ones and recorded ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from cuda_agent_backend.runtime.tensor_files import are_of, load
from sandbox.accuracy.input_bounds import input_bounds, recurrent_weights
from sandbox.accuracy.inputs import lay_together, make_inputs
from sandbox.accuracy.perturb_inputs import flat_storage, on_device
from sandbox.graph.operators import device_of
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Task

Tensors = list[torch.Tensor]
CHUNK = 1 << 24
"""Elements that are looked at together."""


def random_inputs(task: Task, seed: int) -> Tensors:
    """Inputs of a graph on its device, normally distributed within their bounds, weights as small as networks'."""
    made = make_inputs(task.inputs, seed, "normal", input_bounds(task), device_of(task.target))
    scale_weights(made)
    return _as_modules_keep_them(task, made)


def recorded_inputs(task: Task, folder: Path | None) -> Tensors | None:
    """The inputs in a folder, on the graph's device; None where they cannot be read or are not the graph's."""
    found = _loaded(folder, task.inputs) if folder is not None else None
    if found is None:
        return None
    device = str(device_of(task.target))
    return _as_modules_keep_them(task, [on_device(tensor, device) for tensor in found])


def scale_weights(inputs: Sequence[torch.Tensor]) -> None:
    """Scale matrices and filters in place as networks initialise them, by the root of a row's length.

    Weights of size one let activations grow from layer to layer until they are infinite: then nothing is compared, and
    what is timed is how kernels deal with NaN.
    """
    for tensor in inputs:
        if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel():
            flat_storage(tensor).div_(math.sqrt(tensor[0].numel()))


def vary(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output holds two different finite numbers. They are looked at some at a time: those of an output of
    8 GB, with their places, would take 30 more."""
    return any(map(_varies, outputs))


def _varies(output: torch.Tensor) -> bool:
    first: torch.Tensor | None = None
    for part in _parts(output):
        known = part[part.isfinite()]
        if first is None and known.numel():
            first = known[0]
        if first is not None and bool((known != first).any()):
            return True
    return False


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """All elements, up to `CHUNK` at a time."""
    if tensor.numel() <= CHUNK:
        yield tensor
        return
    line = flat_storage(tensor)
    if tensor.numel() == line.numel():  # as they lie, without gaps
        yield from line.split(CHUNK)
        return
    for part in tensor.unbind(0):
        yield from _parts(part)


def _as_modules_keep_them(task: Task, tensors: Tensors) -> Tensors:
    """The weights of each recurrent layer in one piece of memory."""
    for weights in recurrent_weights(task):
        lay_together(tensors, weights)
    return tensors


def _loaded(folder: Path, specs: Sequence[TensorSpec]) -> Tensors | None:
    try:
        found = load(folder)
    except (OSError, ValueError):
        return None
    return found if are_of(found, specs) else None
