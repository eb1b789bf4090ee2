"""Groups of elements of similar size, and the largest error in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
BINS, BIAS = 2200, 1100
"""Powers of two of a float64, and the bin of 2**0; bin 0 is for zero."""
LANES = {"cpu": 1, "cuda": 512}
"""Tables of largest errors that are filled side by side. Most elements belong to a few groups, and a device that raises
one number for all elements of a group does so one after the other, for longer than all else in a comparison takes."""


def raise_tops(
    tops: Sequence[torch.Tensor],
    bins: torch.Tensor,
    errors: Sequence[torch.Tensor],
    counts: torch.Tensor | None = None,
) -> None:
    """Raise each group's largest error, in place. A maximum is the same in whatever order it is taken. Nothing is read
    back from the device.

    tops: float64 [BINS], not negative, as many as `errors` or more. bins: int64 [n]. errors: as `tops`, but [n].
    counts: int64 [BINS], to which each group's elements are added.
    """
    import torch

    lanes = LANES[bins.device.type]
    lanes = lanes if len(bins) > lanes else 1
    places = bins
    if lanes > 1:  # neighbours go to different tables
        places = torch.arange(len(bins), device=bins.device).remainder_(lanes).mul_(BINS).add_(bins)
    for top, values in zip(tops, errors, strict=False):
        tables = top.new_zeros(lanes * BINS) if lanes > 1 else top
        tables.scatter_reduce_(0, places, values, "amax")
        if lanes > 1:
            torch.maximum(top, tables.view(lanes, BINS).amax(0), out=top)
    if counts is not None and lanes == 1 and bins.device.type == "cpu":
        counts += torch.bincount(bins, minlength=BINS)
    elif counts is not None:  # `bincount` would read back what it counts
        ones = counts.new_ones(1).expand(len(bins))
        tables = counts.new_zeros(lanes * BINS).scatter_add_(0, places, ones)
        counts += tables.view(lanes, BINS).sum(0)


def group_of(size: torch.Tensor) -> torch.Tensor:
    """The group of each element, int64."""
    import torch

    return torch.frexp(size)[1].long().add_(BIAS).masked_fill_(size == 0, 0)
