"""Recurrent layers as operators: what torch runs for `nn.LSTM`, `nn.GRU` and `nn.RNN`, in one piece.

Torch's own operators fall apart into single steps as soon as a graph is traced, and with them what cuDNN does with all
steps at once. These stay whole. They are for inference: without gradients and without dropout.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sandbox.operator_library import NAMESPACE, RECURRENT, define_schemas, implementations

KINDS = RECURRENT
"""The operators' names: those of torch's functions."""

_lock = threading.Lock()
_library: torch.library.Library | None = None


def define_recurrent() -> None:
    """Define the operators, with what traces them. Once per process; later calls do nothing."""
    global _library
    with _lock:
        if _library is not None:
            return
        for kind in KINDS:
            implementations[kind] = partial(partial, run_recurrent, kind)
        define_schemas()
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        for kind in KINDS:
            fake = _fake_lstm if kind == "lstm" else _fake_other
            torch.library.register_fake(f"{NAMESPACE}::{kind}", fake, lib=library)
        _library = library


def run_recurrent(kind: str, *arguments: Any) -> tuple[Tensor, ...]:
    """What the operator of one of `KINDS` does."""
    return _lstm(*arguments) if kind == "lstm" else _other(kind, *arguments)


def _lstm(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], biases: bool, layers: int,
    both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = list(weights)
    found = torch._VF.lstm(x, (h, c), given, biases, layers, 0.0, False, both, batch_first)
    return _as_promised(found, batch_first)


def _other(
    kind: str, x: Tensor, h: Tensor, weights: Sequence[Tensor], biases: bool, layers: int,
    both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    function = getattr(torch._VF, kind)
    found = function(x, h, list(weights), biases, layers, 0.0, False, both, batch_first)
    return _as_promised(found, batch_first)


def _fake_lstm(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], biases: bool, layers: int,
    both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return (*_fake_other(x, h, weights, biases, layers, both, batch_first), _states(x, c))


def _fake_other(
    x: Tensor, h: Tensor, weights: Sequence[Tensor], biases: bool, layers: int, both: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Outputs lie as the libraries have them: step by step, whatever comes first in the shape."""
    width = h.shape[-1] * (2 if both else 1)
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    outputs = x.new_empty(steps, batch, width)
    return (outputs.transpose(0, 1) if batch_first else outputs), _states(x, h)


def _states(x: Tensor, like: Tensor) -> Tensor:
    return x.new_empty(like.shape)


def _as_promised(found: Sequence[Tensor], batch_first: bool) -> tuple[Tensor, ...]:
    """The results as the fake ones lie, each in memory of its own."""
    taken: set[int] = set()
    results = []
    for number, value in enumerate(found):
        turned = number == 0 and batch_first
        by_steps = (value.transpose(0, 1) if turned else value).contiguous()
        place = by_steps.untyped_storage().data_ptr()
        own = by_steps.clone() if place in taken else by_steps
        taken.add(place)
        results.append(own.transpose(0, 1) if turned else own)
    return tuple(results)


def operator_of(kind: str) -> Any:
    """The operator of one of `KINDS`."""
    define_recurrent()
    return getattr(getattr(torch.ops, NAMESPACE), kind).default
