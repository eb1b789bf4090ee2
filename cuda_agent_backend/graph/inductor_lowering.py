"""A lowering of its own for each operator of ours in a graph."""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch._ops import OpOverload

from cuda_agent_backend import log
from sandbox.task.task import Task

OURS = "_cuda_agent"
"""An attribute of lowerings that are ours."""
_lock = threading.Lock()
_lines: dict[int, str] = {}
"""By operator number what its kernel computes, as a line of Inductor's code."""


def give_lowering(op: OpOverload) -> None:
    """Have Inductor call an operator as it is, with the strides that its tag asks for.

    Without a lowering Inductor makes one while it compiles, but only where `config.implicit_fallbacks` lets it, and one
    that neither takes constants of the graph nor carries a task: where it has, that one is wrapped.
    """
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    with _lock:
        known = lowering.lowerings.get(op)
        if getattr(known, OURS, False):
            return
        try:
            if known is None:
                tag = get_layout_constraint_tag(op, with_default=True)
                constraint = lowering.tag_to_layout_constraint(tag)
                lowering.make_fallback(op, layout_constraint=constraint, warn=False)
            lowering.lowerings[op] = _carrying(lowering.lowerings[op])
        except (AttributeError, TypeError) as error:  # of a torch that has it otherwise
            log.once("splice", f"{op} has no lowering of its own: {type(error).__name__}: {error}")


def carry_task(op_key: int, task: Task) -> None:
    """Have code that calls a kernel carry what it computes, for where it will be loaded (see `artifacts`)."""
    packed = base64.b64encode(zlib.compress(task.to_json().encode(), 9)).decode()
    call = f"kernel_task({op_key}, '{packed}')"
    _lines[op_key] = f"from cuda_agent_backend.artifacts import kernel_task; {call}"


def _carrying(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering after which the code has the kernel's line among its imports. C++ has none and carries nothing.

    The operator may read constants that the graph holds.
    """
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    def lower(*arguments: Any, **more: Any) -> Any:
        before = len(V.graph.operations)
        with _constants_taken(V.fake_mode):
            found = plain(*arguments, **more)
        key = arguments[0] if arguments else None
        if type(key) is int and key in _lines and not V.graph.cpp_wrapper:
            for made in V.graph.operations[before:]:
                if isinstance(made, ir.FallbackKernel):
                    vars(made)["codegen"] = partial(_write, made, _lines[key])
        return found

    lower._is_fallback_handler = True  # type: ignore[attr-defined]  # torch asks for it
    setattr(lower, OURS, True)
    return lower


@contextmanager
def _constants_taken(mode: Any) -> Iterator[None]:
    """Within it a fake mode takes real tensors beside its own: Inductor works out what an operator gives from fake
    inputs, but gives it constants of the graph as they are, and the mode of a compilation refuses those."""
    before = mode.allow_non_fake_inputs
    mode.allow_non_fake_inputs = True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def _write(call: Any, line: str, wrapper: Any) -> None:
    wrapper.add_import_once(line)
    type(call).codegen(call, wrapper)
