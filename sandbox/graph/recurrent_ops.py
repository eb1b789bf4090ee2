"""Recurrent layers as operators: what torch runs for `nn.LSTM`, `nn.GRU` and `nn.RNN`, in one piece.

Torch's own operators fall apart into single steps as soon as a graph is traced, and with them what cuDNN does with all
steps at once. These stay whole. They are for inference: without gradients and without dropout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "cuda_agent"
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""The operators' names: those of torch's functions."""
_COMMON = "Tensor[] weights, bool has_biases, int num_layers, bool bidirectional, bool batch_first"

_lock = threading.Lock()
_library: torch.library.Library | None = None


def define_recurrent() -> None:
    """Register the operators. Once per process; later calls do nothing.

    `lstm(x, h, c, ...)` returns outputs, h and c; the others, `gru(x, h, ...)`, outputs and h. Arguments, their order
    in `weights` and results are those of `torch.lstm` and its like.
    """
    global _library
    with _lock:
        if _library is not None:
            return
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        for kind in KINDS:
            _define(library, kind)
        _library = library


def _define(library: torch.library.Library, kind: str) -> None:
    states = "Tensor h, Tensor c" if kind == "lstm" else "Tensor h"
    result = ", ".join(["Tensor"] * (3 if kind == "lstm" else 2))
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(f"{kind}(Tensor x, {states}, {_COMMON}) -> ({result})", tags=tags)
    run, fake = (_lstm, _fake_lstm) if kind == "lstm" else (_other(kind), _fake_other)
    library.impl(kind, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{kind}", fake, lib=library)


def _lstm(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], biases: bool, layers: int,
    both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = list(weights)
    found = torch._VF.lstm(x, (h, c), given, biases, layers, 0.0, False, both, batch_first)
    return _as_promised(found, batch_first)


def _other(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    function = getattr(torch._VF, kind)

    def run(
        x: Tensor, h: Tensor, weights: Sequence[Tensor], biases: bool, layers: int, both: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        found = function(x, h, list(weights), biases, layers, 0.0, False, both, batch_first)
        return _as_promised(found, batch_first)

    return run


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
