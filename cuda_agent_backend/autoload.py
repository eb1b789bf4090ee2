"""What torch calls when it is imported: from then on it knows our operators wherever it loads compiled code.

Saved artifacts, exported packages and cached code name our operators. So that they load in a process that imports
nothing of ours, the entry point `autoload` (group `torch.backends`) waits for the first import of `torch._inductor`,
which all of torch's loaders need, and defines the operators then. Until then it costs nothing; this module and what it
imports at once are small.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

LOADERS = "torch._inductor"
"""The package whose first import comes before any load of compiled code."""


def autoload() -> None:
    """The entry point. Never raises: torch would not be imported."""
    try:
        if LOADERS in sys.modules:
            register_operators()
        elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, _AtImport())
    except Exception as error:
        _say(error)


def register_operators() -> None:
    """Have torch know our operators now, and where their kernels are. Later calls do nothing.

    For programs that load compiled code in another way than through `torch._inductor`, or switch torch's loading of
    entry points off (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
    """
    from sandbox import operator_library

    operator_library.default_resolver = _resolve
    operator_library.implementations.setdefault(operator_library.KERNEL, _kernel)
    for kind in operator_library.RECURRENT:
        operator_library.implementations.setdefault(kind, partial(_recurrent, kind))
    operator_library.define_schemas()


class _AtImport:
    """A finder of modules that finds none, and registers the operators when it is asked for torch's compiler.

    It stays among the finders: one that takes itself away while they are asked has the next one left out.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        """Nothing to load: the module is left to those who have it."""
        if name != LOADERS:
            return
        try:
            register_operators()
        except Exception as error:
            _say(error)


def _kernel() -> Callable[..., Any]:
    from sandbox.launcher.ops import run

    return run


def _recurrent(kind: str) -> Callable[..., Any]:
    from sandbox.graph.recurrent_ops import run_recurrent

    return partial(run_recurrent, kind)


def _resolve(op_key: int) -> bool:
    from cuda_agent_backend.runtime.kernels import resolve

    return resolve(op_key)


def _say(error: Exception) -> None:
    logging.getLogger("cuda_agent").warning(
        "torch does not know the operators of cuda_agent: %s: %s", type(error).__name__, error
    )
