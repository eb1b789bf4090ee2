"""How far results are from each other."""

from __future__ import annotations

from torch import Tensor


def relative(got: Tensor, want: Tensor) -> float:
    """The norm of the difference over that of ``want``, both in float64."""
    want = want.double()
    return float((got.double() - want).norm() / want.norm())
