"""Where a result is not finite: whether that is as it should be. Pure functions on tensors, as in `accuracy`.

Where eager is NaN or infinite the candidate must be the same (and so with the sign), or what the oracle is: finite,
where only eager overflowed, or infinite, where eager made a NaN of it. Where eager is finite the candidate must be.
The oracle counts as rounded to the output's dtype. Where it lies within a rounding of what overflows, both its
neighbours are right: the largest number and the infinity. On inputs that hold infinities or NaN themselves a candidate
of 16 bits may also be what the oracle is where eager lost them: some of cuDNN's convolutions in half precision give the
bias where an input is infinite.

Where eager made a NaN of several results together, as ``var_mean`` does of a mean that is infinite, the infinity of the
operator for it alone is right too (`written_out`).

What breaks this may be chance: where rounding decides the sign below a root or a logarithm, a sum that cancels to
nothing is as often a little below zero in the candidate as in eager, at other places (`Places`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sandbox.accuracy.nearby import DRAWS
from sandbox.accuracy.perturb_inputs import flat_storage
from sandbox.accuracy.pieces import ANY, Piece

if TYPE_CHECKING:
    import torch

SPREAD = 2.0**-4
MULTIPLE, MOST_TIMES = 2.0, 16.0
CHUNK = 1 << 24
MOST_PLACES = 256
"""More than this many are no chance."""


def wrong_places(
    c: torch.Tensor, e: torch.Tensor, o: torch.Tensor, dtype: torch.dtype, beyond: bool
) -> torch.Tensor:
    """Positions, int64, where a candidate is not finite as it should be.

    c, e, o: candidate, eager and oracle, float64 [n]. dtype: of the output. beyond: the inputs are not finite.
    """
    narrow = o.to(dtype).double()
    fine = same_kind(c, e)
    fine |= ~e.isfinite() & same_kind(c, narrow)
    fine |= _overflows_by_rounding(c, o, dtype)
    if beyond and dtype.itemsize == 2:
        fine |= _not_finite_alike(c, narrow)
    return (~fine).nonzero().flatten()


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all of its numbers are."""
    if not tensor.is_floating_point():
        return True
    line = flat_storage(tensor)  # in whatever order: no copy of a tensor that is only transposed
    if tensor.numel() < line.numel():  # what lies between the elements is none of it
        line = tensor.reshape(-1)
    return all(bool(part.isfinite().all()) for part in line.split(1 << 26))


def right_as(
    c: torch.Tensor, e: torch.Tensor, other: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Where eager has a NaN and the candidate is as not finite as another way to write the task has it.

    c, e, other: candidate, eager, and that way in float64, [n]. Numbers in the place of eager's NaN are not excused.
    """
    return e.isnan() & _not_finite_alike(c, other.to(dtype).double())


def same_kind(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Both finite, both NaN, or both the same infinity."""
    return a.isfinite() & b.isfinite() | _not_finite_alike(a, b)


def _not_finite_alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.isnan() & b.isnan() | a.isinf() & (a == b)


def _overflows_by_rounding(c: torch.Tensor, o: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where the oracle is within a rounding of the least number that overflows, and the candidate on either side."""
    import torch

    limits = torch.finfo(dtype)
    step = limits.max * limits.eps / (2 - limits.eps)  # between the largest numbers
    near = (o.abs() - limits.max - step / 2).abs() <= step
    return near & (c.abs() >= limits.max - step) & (c.sign() == o.sign())


class Places:
    """Wrong places of one output on one set of inputs, perhaps of several runs: are they chance?

    Eager runs on the same inputs moved by one unit in the last place (`look`), as often as `nearby` does. The places
    are chance if each is uncertain, if no run has more than `MULTIPLE` times as many (and what such a count varies by)
    as places where eager's own results go from finite to not finite or back, if no number there is far beyond eager's
    and the oracle's, and if infinities are of a sign to which eager's results go.

    Uncertain: among eager's and the oracle's results are such that are finite and such that are not; or, in float32 and
    float64, where eager has a number, it varies by more than `SPREAD` of itself: what is no longer small beside its
    noise does not go below zero by it, and noise in one part of an output excuses nothing in another.
    """

    def __init__(self, eager: torch.Tensor) -> None:
        self._eager = eager
        self._runs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._uncertain: list[torch.Tensor] = []
        self._infinities: set[float] = set()
        self._flips = self._looks = 0
        self._largest = 0.0

    def add(self, places: torch.Tensor, values: torch.Tensor, exact: torch.Tensor) -> None:
        """Those of one run, int64 positions in the flattened output, and the candidate's and the oracle's values there.
        Not after the first `look`."""
        self._runs.append((places, values, exact))

    def look(self, eager: torch.Tensor) -> None:
        """Learn from eager's outputs on inputs that differ by rounding; `learn` follows, from the oracle's."""
        import torch

        if not self._looks:
            self._uncertain = [torch.zeros_like(at, dtype=torch.bool) for at, *_ in self._runs]
            for number, (_, _, exact) in enumerate(self._runs):
                self._compare(number, slice(None), exact)
        self._looks += 1
        pairs = zip(*(x.reshape(-1).split(CHUNK) for x in (self._eager, eager)), strict=True)
        for a, b in pairs:
            self._count_flips(a, b.to(a.device))
        self.learn(Piece(ANY, eager))

    def learn(self, piece: Piece) -> None:
        """Learn from outputs on such inputs: a part of eager's or the oracle's."""
        for number, (places, *_) in enumerate(self._runs):
            which, at = piece.positions(places, self._eager.shape)
            if len(which):
                result = piece.oracle.reshape(-1)[at.to(piece.oracle.device)]
                self._compare(number, which, result)

    def _count_flips(self, own: torch.Tensor, other: torch.Tensor) -> None:
        flips = ~same_kind(own, other)
        self._flips += int(flips.sum())
        for side in (own[flips], other[flips]):
            self._infinities |= set(side[side.isinf()].unique().tolist())

    def _compare(self, number: int, which: torch.Tensor | slice, result: torch.Tensor) -> None:
        """result: what another run has at those places of run `number`."""
        own, places = self._eager, self._runs[number][0][which]
        first = own.reshape(-1)[places.to(own.device)].double()
        other = result.to(own.dtype).double().to(first.device)
        uncertain = ~same_kind(first, other)
        if own.dtype.itemsize > 2:
            uncertain |= (other - first).abs() > SPREAD * first.abs()
        self._uncertain[number][which] |= uncertain.to(places.device)
        known = other[other.isfinite()].abs()
        self._largest = max(self._largest, float(known.max()) if len(known) else 0.0)

    @property
    def are_chance(self) -> bool:
        """Whether all are. Without all `look`s none is."""
        if self._looks < DRAWS:
            return False
        few = most(MULTIPLE * self._flips / self._looks)
        return all(
            len(places) <= few and bool(uncertain.all()) and self._within(values)
            for (places, values, _), uncertain in zip(self._runs, self._uncertain, strict=True)
        )

    def _within(self, values: torch.Tensor) -> bool:
        known = values[values.isfinite()].abs()
        infinities = set(values[values.isinf()].unique().tolist())
        return infinities <= self._infinities and not bool(
            (known > MOST_TIMES * self._largest).any()
        )


def most(expected: float) -> int:
    """How many rare events there may be where so many are to be expected: that is uncertain by the root of it."""
    return int(expected + 3 * math.sqrt(expected))
