"""A call in float64, whatever floating dtype it asks for within.

Variances and their means are those of the numbers themselves, where eager's way in float64 loses them: it makes NaN of
a mean that is infinite, and of doubles whose variance overflows and whose mean does not. A deviation is the root of its
variance.
"""

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
FOR_SUMS, FOR_SQUARES = 2.0**-64, 2.0**-540
"""What doubles are scaled by so that no sum of them overflows, and no sum of their squares."""


class _Wide(TorchDispatchMode):
    """What asks for a narrower floating dtype gets float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(_widen, (args, kwargs or {}))
        made = func(*args, **kwargs)
        return _spread(func, made, *args, **kwargs) if func in SPREADS else made


_aten = torch.ops.aten
SPREADS = {
    _aten.var.correction: False,
    _aten.std.correction: True,
    _aten.var_mean.correction: False,
    _aten.std_mean.correction: True,
}
"""Operators of a variance, or of its root."""


def _spread(
    func: Any,
    made: Any,
    x: Tensor,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    """What such an operator made of ``x``, with the numbers that it lost."""
    spread, *means = made if isinstance(made, tuple) else (made,)
    if x.dtype != torch.float64 or all(bool(y.isfinite().all()) for y in (spread, *means)):
        return made
    small = _aten.var.correction(x * FOR_SQUARES, dim, correction=correction, keepdim=keepdim)
    variance = small / FOR_SQUARES / FOR_SQUARES
    spread = _or_lost(spread, variance.sqrt() if SPREADS[func] else variance)
    means = [_or_lost(y, (x * FOR_SUMS).mean(dim, keepdim) / FOR_SUMS) for y in means]
    return (spread, *means) if means else spread


def _or_lost(made: Tensor, other: Tensor) -> Tensor:
    return made.where(made.isfinite(), other)


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
