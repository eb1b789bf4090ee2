"""Convolutions whose blocks can keep the part of the image that they read, with its halo, in shared memory.

`halo_of` finds which loop of a GEMM's terms moves a window along which loop of its results. A block that has a box of
results then needs a box of the image. It is larger by a halo, whatever the number of taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy

from cuda_agent_backend.codegen.analysis.gemm import Factor, GemmForm, points
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Dim

FARTHEST = 2
"""Elements between what neighbouring results read of one tap."""


@dataclass(frozen=True)
class Axis:
    """A loop of the results, and the loop of the terms that moves along it: ``step`` * row + ``spread`` * tap is a
    place on it, one of the two being 1. Without such a loop (``taps`` is None) a row is its own place."""

    row: Dim
    taps: Dim | None = None
    step: int = 1
    spread: int = 1

    @property
    def reach(self) -> int:
        """Places from a window's first to its last."""
        return self.spread * (self.taps[1] - 1) if self.taps is not None else 0

    def places(self, rows: int) -> int:
        """What the windows of so many rows cover."""
        return self.step * (rows - 1) + self.reach + 1

    def at(self, first: sympy.Expr, place: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr]:
        """A row and a tap that are ``place`` places behind the window of row ``first``."""
        if self.taps is None:
            return {self.row[0]: first + place}
        if self.step == 1:
            return {self.row[0]: first + place, self.taps[0]: sympy.Integer(0)}
        return {self.row[0]: first, self.taps[0]: place}


@dataclass(frozen=True)
class Halo:
    """``axes``: one for each loop of the rows, in their order; ``channel``: the loop of the other terms."""

    axes: tuple[Axis, ...]
    channel: Dim
    taps: tuple[Dim, ...]

    @property
    def tap_count(self) -> int:
        return points(self.taps)

    def places(self, box: Sequence[int]) -> tuple[int, ...]:
        """Of the image, by axis, what the windows of a box of rows cover."""
        return tuple(axis.places(rows) for axis, rows in zip(self.axes, box, strict=True))

    def boxes(self, box: Sequence[int]) -> int:
        """How many boxes cover all rows."""
        return math.prod(-(-axis.row[1] // rows) for axis, rows in zip(self.axes, box, strict=True))


def halo_of(c: GemmForm) -> Halo | None:
    """None where this is no convolution of an image whose places or channels are next to each other."""
    left, right = c.left, c.right
    if c.is_half or c.is_quantized or c.window or right.mask is not None:
        return None
    steps = {s: coefficient(left.index, s) or 0 for s, _ in (*c.rows, *c.inner)}
    if min(steps.values()) < 1:
        return None
    free = sorted((d for d in c.inner if d[0] not in left.mask_symbols), key=lambda d: steps[d[0]])
    row = steps[c.rows[-1][0]]
    likely = free[-1:] if row <= FARTHEST else []
    likely += [d for d in free[:1] if row > 1 and steps[d[0]] == 1]
    found = (_with_channel(c, channel, steps) for channel in likely)
    return next((halo for halo in found if halo is not None), None)


def with_any_weights(c: GemmForm) -> GemmForm:
    """``c`` as if each column had weights for all taps."""
    return replace(c, right=replace(c.right, mask=None))


def _with_channel(c: GemmForm, channel: Dim, steps: dict[sympy.Symbol, int]) -> Halo | None:
    """Of which all other terms are taps, or one tap where there are none.

    To the kernel, neighbours on a line may be what channels are elsewhere, and channels taps along the batch.
    """
    taps = tuple(d for d in c.inner if d != channel)
    axes = {row: Axis(row) for row in c.rows}
    for tap in taps:
        open_rows = [row for row, axis in axes.items() if axis.taps is None]
        ways = _along(tap, open_rows, c.left, steps)
        found = min(ways, key=lambda a: a.step * a.spread, default=None)
        if found is None:
            return None
        axes[found.row] = found
    return Halo(tuple(axes.values()), channel, taps)


def _along(
    tap: Dim, rows: Sequence[Dim], left: Factor, steps: dict[sympy.Symbol, int]
) -> Iterator[Axis]:
    """The ways in which a loop of the terms moves along one of the rows."""
    for row in rows:
        a, b = steps[row[0]], steps[tap[0]]
        if b % a and a % b:
            continue
        axis = Axis(row, tap, max(1, a // b), max(1, b // a))
        if all(_moves_along(index, axis) for index in _indices(left)):
            yield axis


def _moves_along(index: sympy.Expr, axis: Axis) -> bool:
    """Whether only the place on an axis matters to an index, whichever row and tap it belongs to."""
    assert axis.taps is not None
    row, tap = axis.row[0], axis.taps[0]
    place = axis.step * row + axis.spread * tap
    same = index.xreplace(axis.at(sympy.Integer(0), place))
    return bool(sympy.expand(same - index) == 0)


def _indices(factor: Factor) -> Iterator[sympy.Expr]:
    masked = factor.mask.walk() if factor.mask is not None else ()
    return itertools.chain([factor.index], (i.index for i in masked if i.index is not None))
