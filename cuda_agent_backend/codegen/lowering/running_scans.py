"""Scans of one value that Inductor hands to ATen, or writes in a way that says less: running extremes without their
places, running sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V
from torch.fx import Node

from cuda_agent_backend.operators.poolings import values_only

aten = torch.ops.aten
EXTREMES = {aten.cummax.default: "maximum", aten.cummin.default: "minimum"}


def lowered(node: Node, args: Sequence[Any], kwargs: dict[str, Any], device: str) -> Any:
    """The results of a scan; None for anything else, and for what only ATen does."""
    target: Any = node.target
    if target in EXTREMES and values_only(node):
        found = _scan(EXTREMES[target], *args, **kwargs)
        return None if found is None else (found, None)
    if target is aten.logcumsumexp.default and device == "cuda":
        return _scan("logaddexp", *args, **kwargs)
    return None


def _scan(operation: str, x: Any, dim: int) -> Any:
    """``operation`` is what the two halves of a scan are joined by, as the sketches know it."""
    if not x.get_size():
        return None

    def join(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        handler: Any = V.get_ops_handler()
        return (handler._default(operation, (a[0], b[0]), {}),)

    inner = lowering._make_scan_inner(x, axis=dim, dtype=x.get_dtype())
    (found,) = ir.Scan.create(**inner, combine_fn=join)
    return found
