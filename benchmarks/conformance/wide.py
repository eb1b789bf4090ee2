"""A call in float64, whatever floating dtype it asks for within."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.conformance.compare import Values

NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Wide(TorchDispatchMode):
    """What asks for a narrower floating dtype gets float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(_widen, (args, kwargs or {}))
        return func(*args, **kwargs)


def _widen(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


@contextmanager
def in_float64() -> Iterator[Callable[[Tensor], Tensor]]:
    """Within it calls are wide; gives what converts their inputs, layouts kept but for gaps."""
    with _Wide():
        yield lambda x: x.double() if x.dtype in NARROW else x


def widened(narrow: Values, wide: Values | None) -> Values:
    """The oracle's values: float64 where the narrow ones are floating, whose own they are where there are no others."""
    found = {}
    for name, own in narrow.named.items():
        other = wide.named.get(name) if wide else None
        fits = other is not None and other.shape == own.shape and other.dtype == torch.float64
        exact = other if fits else own
        assert exact is not None
        found[name] = exact.double() if own.dtype.is_floating_point else own
    return Values(found, narrow.changed)
