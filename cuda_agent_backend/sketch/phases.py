"""Transposed convolutions with a stride: which phases of it have weights for which taps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent_backend.sketch.contraction import Contraction, points
from cuda_agent_backend.sketch.cuda_taps import holds, is_known
from cuda_agent_backend.sketch.halo import Halo, halo_of, with_any_weights
from cuda_agent_backend.sketch.nest import Dim
from cuda_agent_backend.sketch.ssa import Body

Visit = tuple[int, int]
"""A tap and a phase that has weights for it."""
Pair = tuple[int, int, int]
"""Two taps, the second one the number of taps where there is none, and a phase."""


@dataclass(frozen=True)
class Phases:
    """``dims``: loops of the columns, as they are nested there; ``near``: phases whose results are columns next to each
    other, 1 where those are other channels'; ``taps``: by phase, which it has weights for."""

    halo: Halo
    dims: tuple[Dim, ...]
    near: int
    taps: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return points(self.dims)

    @property
    def visits(self) -> list[Visit]:
        """All that a chunk of the image is multiplied by, tap by tap."""
        return sorted((tap, phase) for phase, taps in enumerate(self.taps) for tap in taps)

    @property
    def pairs(self) -> list[Pair]:
        """The same, two taps at a time."""
        none = self.halo.tap_count
        return [
            (taps[at], taps[at + 1] if at + 1 < len(taps) else none, phase)
            for phase, taps in enumerate(self.taps)
            for at in range(0, len(taps), 2)
        ]


def phases_of(c: Contraction) -> Phases | None:
    """None where this is no convolution, or where each column has weights for all taps."""
    mask = c.right.mask
    if mask is None or not c.right.absent:
        return None
    halo = halo_of(with_any_weights(c))
    if halo is None:
        return None
    own = c.right.mask_symbols
    dims = tuple(d for d in c.columns if d[0] in own)
    apart = [d for d in c.columns if d not in dims]
    if not dims or not apart or own - {s for s, _ in (*dims, *halo.taps)} or not is_known(mask):
        return None
    front = dims if c.columns[-1] == apart[-1] else dims[:-1]
    if c.columns[: len(front)] != front:
        return None
    taps = tuple(tuple(_taps_of(mask, halo, dims, phase)) for phase in _points(dims))
    return Phases(halo, dims, 1 if front == dims else dims[-1][1], taps)


def _taps_of(
    mask: Body, halo: Halo, dims: tuple[Dim, ...], phase: tuple[int, ...]
) -> Iterator[int]:
    """Numbers of the taps that a phase has weights for."""
    loops = [s for s, _ in (*dims, *halo.taps)]
    for number, tap in enumerate(_points(halo.taps)):
        if holds(mask, dict(zip(loops, (*phase, *tap), strict=True))):
            yield number


def _points(dims: tuple[Dim, ...]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(n) for _, n in dims))
