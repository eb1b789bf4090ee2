"""Outputs that hold positions: which others than eager's are right. Pure functions on tensors.

Among equal values torch leaves open which position comes out of an extremum, a sort that is not stable, or a selection;
what eager takes depends on its algorithm and the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ExtremumCheck:
    """Positions of an extremum. ``operand``: the values that they point into, in float64 unless they are ``exact``.

    ``dim`` None: positions in the flattened operand. ``largest``: of the maximum, else the minimum. ``exact``: the
    values are inputs, so a tie is exact; else it is within rounding.
    """

    operand: torch.Tensor
    dim: int | None
    largest: bool
    exact: bool

    def wrong(self, found: torch.Tensor, eager: torch.Tensor) -> str:
        """What is wrong with positions (int64, the output's shape), else empty."""
        import torch

        if torch.equal(found, eager):
            return ""
        values, dim = self.operand, self.dim
        if dim is None:
            values, dim = values.reshape(-1), 0
        if _outside(found, values.shape[dim]):
            return "a position lies outside the operand"
        shape = list(values.shape)
        shape[dim] = 1
        chosen = values.gather(dim, found.reshape(shape)).double()
        best = values.gather(dim, eager.reshape(shape)).double()
        wrong = (chosen != best) & ~(chosen.isnan() & best.isnan())
        if not self.exact:
            values = values.double()
            extremum = values.amax(dim, True) if self.largest else values.amin(dim, True)
            lost = (best - extremum).abs().nan_to_num(0.0, 0.0, 0.0).max()
            allowed = 2 * lost + 4 * torch.finfo(torch.float32).eps * extremum.abs()
            wrong &= ~((chosen - extremum).abs() <= allowed)
        return _first(wrong, "smaller values")


@dataclass(frozen=True)
class OrderCheck:
    """Positions of sorted or selected elements of ``operand``, an input, along ``dim``."""

    operand: torch.Tensor
    dim: int

    def wrong(self, found: torch.Tensor, eager: torch.Tensor) -> str:
        """What is wrong with positions (int64, the output's shape), else empty.

        Each must lead to a value equal to that of eager's, and none may come twice in a row.
        """
        import torch

        if torch.equal(found, eager):
            return ""
        size = self.operand.shape[self.dim] if self.operand.dim() else 1
        if _outside(found, size):
            return "a position lies outside the operand"
        in_order = found.sort(self.dim).values
        if bool((in_order.diff(dim=self.dim) == 0).any()):
            return "a position comes twice in a row"
        chosen, best = (self.operand.gather(self.dim, places) for places in (found, eager))
        wrong = (chosen != best) & ~((chosen != chosen) & (best != best))
        return _first(wrong, "other values")


PositionCheck = ExtremumCheck | OrderCheck


def _outside(positions: torch.Tensor, size: int) -> bool:
    return bool(((positions < 0) | (positions >= size)).any())


def _first(wrong: torch.Tensor, what: str) -> str:
    if not bool(wrong.any()):
        return ""
    return f"{int(wrong.sum())} positions of {what}, first at {wrong.nonzero()[0].tolist()}"
