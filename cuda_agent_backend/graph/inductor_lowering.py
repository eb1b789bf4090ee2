"""A lowering of its own for each operator of ours in a graph."""

from __future__ import annotations

import threading

from torch._ops import OpOverload

from cuda_agent_backend import log

_lock = threading.Lock()


def give_lowering(op: OpOverload) -> None:
    """Have Inductor call an operator as it is, with the strides that its tag asks for.

    Without a lowering Inductor makes this one while it compiles, but only where `config.implicit_fallbacks` lets it.
    """
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    with _lock:
        if op in lowering.lowerings:
            return
        try:
            tag = get_layout_constraint_tag(op, with_default=True)
            constraint = lowering.tag_to_layout_constraint(tag)
            lowering.make_fallback(op, layout_constraint=constraint, warn=False)
        except (AttributeError, TypeError) as error:  # of a torch that has it otherwise
            log.once("splice", f"{op} has no lowering of its own: {type(error).__name__}: {error}")
