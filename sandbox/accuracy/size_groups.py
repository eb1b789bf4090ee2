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
    tops: Sequence[torch.Tensor], bins: torch.Tensor, errors: Sequence[torch.Tensor]
) -> None:
    """Raise each group's largest error, in place. A maximum is the same in whatever order it is taken.

    tops: float64 [BINS], not negative, as many as `errors` or more. bins: int64 [n]. errors: as `tops`, but [n].
    """
    import torch

    lanes = LANES[bins.device.type]
    if lanes == 1 or len(bins) <= lanes:
        for top, values in zip(tops, errors, strict=False):
            top.scatter_reduce_(0, bins, values, "amax")
        return
    # Neighbours go to different tables.
    places = torch.arange(len(bins), device=bins.device).remainder_(lanes).mul_(BINS).add_(bins)
    for top, values in zip(tops, errors, strict=False):
        tables = top.new_zeros(lanes * BINS).scatter_reduce_(0, places, values, "amax")
        torch.maximum(top, tables.view(lanes, BINS).amax(0), out=top)


def group_of(size: torch.Tensor) -> torch.Tensor:
    """The group of each element, int64."""
    import torch

    return torch.frexp(size)[1].long().add_(BIAS).masked_fill_(size == 0, 0)
