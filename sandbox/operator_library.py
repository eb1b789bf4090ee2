"""The operators that compiled code calls: their names and schemas, known to torch before any such code is loaded.

Importing this imports nothing else, and to define the operators takes milliseconds: what they do is imported in their
first call. So a process that only loads compiled code need not know of us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

NAMESPACE = "cuda_agent"
MAX_INPUTS, MAX_OUTPUTS = 32, 8
"""Of a kernel; there is an operator for each of both."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operators named as torch's functions."""

Resolver = Callable[[int], bool]
"""Called with an unknown key; binds it and returns True, or returns False."""

default_resolver: Resolver | None = None
"""What is asked about unknown keys where nothing else was set (see `launcher.registry`)."""
stand_ins: Callable[[int], Callable[..., Any] | None] | None = None
"""Gives what computes the same as the kernel of a key that is not to be had, or None."""
implementations: dict[str, Callable[[], Callable[..., Any]]] = {}
"""How to get at what the operators do, imported in their first call: of `KERNEL`, and of each of `RECURRENT`."""
KERNEL = "run"

_lock = threading.Lock()
_library: Any = None  # operators live as long as this object


def op_name(inputs: int, outputs: int) -> str:
    """Name of the operator for so many inputs (1 to 32) and outputs (1 to 8)."""
    if not (1 <= inputs <= MAX_INPUTS and 1 <= outputs <= MAX_OUTPUTS):
        raise ValueError(f"no operator for {inputs} inputs and {outputs} outputs")
    return f"run_{inputs}_{outputs}"


def find_stand_in(key: int) -> Callable[..., Any] | None:
    """What computes the same as the kernel of a key that is not to be had, where that is known."""
    return stand_ins(key) if stand_ins else None


def define_schemas() -> None:
    """Have torch know the operators. Once per process; later calls do nothing. Safe among threads."""
    global _library
    with _lock:
        if _library is not None:
            return
        from torch.library import Library

        library = Library(NAMESPACE, "DEF")
        for inputs in range(1, MAX_INPUTS + 1):
            for outputs in range(1, MAX_OUTPUTS + 1):
                _define_kernels(library, inputs, outputs)
        for kind in RECURRENT:
            _define_recurrent(library, kind)
        _library = library


def _define_kernels(library: Any, inputs: int, outputs: int) -> None:
    import torch

    name = op_name(inputs, outputs)
    arguments = ", ".join(f"Tensor x{i}" for i in range(inputs))
    result = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    # The native implementation registers for the CPU and CUDA keys, which go before this one.
    _define(library, name, f"(int key, {arguments}) -> {result}", _run)
    # Compiled code calls these below autograd, whose own fallback would cost half a microsecond per call.
    library.m.impl(name, "Autograd", torch.library.fallthrough_kernel, False)


def _define_recurrent(library: Any, kind: str) -> None:
    """`lstm(x, h, c, ...)` returns outputs, h and c; the others, `gru(x, h, ...)`, outputs and h.

    Arguments, their order in `weights` and results are those of `torch.lstm` and its like.
    """

    states = "Tensor h, Tensor c" if kind == "lstm" else "Tensor h"
    rest = "Tensor[] weights, bool has_biases, int num_layers, bool bidirectional, bool batch_first"
    result = ", ".join(["Tensor"] * (3 if kind == "lstm" else 2))
    _define(library, kind, f"(Tensor x, {states}, {rest}) -> ({result})", _First(kind))


def _define(library: Any, name: str, schema: str, run: Callable[..., Any]) -> None:
    """Through the library's own object, which is several times as fast for so many operators."""
    from torch import Tag

    library.m.define(name + schema, "", (Tag.pt2_compliant_tag, Tag.needs_exact_strides))
    library.m.impl(name, "CompositeExplicitAutograd", run, False)


class _First:
    """What an operator does, looked for in its first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._run is None:
            self._run = implementations[self._name]()
        return self._run(*arguments)


_run = _First(KERNEL)
