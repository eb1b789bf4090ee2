"""Parts of an output: what the oracle computes, and a comparison looks at, at a time. Of 8 GB, float64 makes 16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ANY = -1
"""The number of an output in a piece that is of whichever is asked for."""


@dataclass(frozen=True)
class Cut:
    """Elements `start` to `stop` - 1 along a dimension of an output."""

    dim: int
    start: int
    stop: int


@dataclass(frozen=True)
class Piece:
    """The oracle's values, float64 where the output is of floating point, of output `number` or of a cut of it.

    written_out: the same by operators of their own (see `written_out`), or none.
    """

    number: int
    oracle: torch.Tensor
    written_out: torch.Tensor | None = None
    cut: Cut | None = None

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The same elements of another tensor of the output's shape, a view."""
        cut = self.cut
        return whole if cut is None else whole.narrow(cut.dim, cut.start, cut.stop - cut.start)

    def places(self, positions: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Positions in the flattened piece, int64 [n], as those in the flattened output of that shape."""
        if self.cut is None:
            return positions
        length, behind = self._steps(shape)
        before, rest = positions // (length * behind), positions % (length * behind)
        return (before * shape[self.cut.dim] + self.cut.start) * behind + rest

    def positions(
        self, places: torch.Tensor, shape: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of these places in the flattened output (int64 [n]) lie in the piece, by index, and where there."""
        import torch

        if self.cut is None:
            return torch.arange(len(places), device=places.device), places
        length, behind = self._steps(shape)
        along = places // behind % shape[self.cut.dim] - self.cut.start
        which = ((along >= 0) & (along < length)).nonzero().flatten()
        before = places[which] // (behind * shape[self.cut.dim])
        at = (before * length + along[which]) * behind + places[which] % behind
        return which, at

    def _steps(self, shape: Sequence[int]) -> tuple[int, int]:
        """Elements of the piece along its dimension, and elements from one to the next of those."""
        assert self.cut is not None
        return self.cut.stop - self.cut.start, math.prod(shape[self.cut.dim + 1 :])
