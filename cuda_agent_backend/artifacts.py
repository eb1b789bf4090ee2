"""What compiled code carries of its kernels: the operators that each stands for.

The code that Inductor writes around a kernel calls `kernel_task` when it is loaded. Where the kernel is then not to be
had, its operators run one by one in its place: right, and as fast as eager mode.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable
from typing import Any

from cuda_agent_backend.autoload import register_operators
from sandbox import operator_library

_lock = threading.Lock()
_packed: dict[int, str] = {}
_made: dict[int, Callable[..., Any] | None] = {}


def kernel_task(op_key: int, packed: str) -> None:
    """Keep what a kernel computes (see `graph.inductor_lowering.carry_task`), and have torch know our operators."""
    _packed[op_key] = packed
    operator_library.stand_ins = stand_in
    register_operators()


def stand_in(op_key: int) -> Callable[..., Any] | None:
    """What computes the kernel's outputs from its inputs without it; None where its task is not known."""
    with _lock:
        if op_key not in _made:
            if op_key not in _packed:
                return None
            _made[op_key] = _make(
                op_key, zlib.decompress(base64.b64decode(_packed[op_key])).decode()
            )
        return _made[op_key]


def _make(op_key: int, text: str) -> Callable[..., Any] | None:
    from cuda_agent_backend import log
    from sandbox.graph.stand_in import StandIn
    from sandbox.task.arguments import TaskError
    from sandbox.task.task import Task

    try:
        made = StandIn(Task.from_json(text))
    except (TaskError, ValueError) as error:
        log.once("cache", f"nothing stands in for kernel {op_key}: {error}")
        return None
    log.once(
        "cache",
        f"kernel {op_key} of saved code is not to be had, so its operators run one by one, as in eager mode. Set "
        "CUDA_AGENT_CACHE_DIR to the folder of the kernel cache that the code was compiled with, or to a copy of it; "
        "for another kind of machine compile the code anew there.",
    )
    return made
