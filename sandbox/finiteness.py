"""Where a result is not finite: whether that is as it should be. Pure functions on tensors, as in `accuracy`.

Where eager is NaN or infinite the candidate must be the same (and so with the sign), or what the oracle is: finite,
where only eager overflowed, or infinite, where eager made a NaN of it. Where eager is finite the candidate must be.
The oracle counts as rounded to the output's dtype. Where it lies within a rounding of what overflows, both its
neighbours are right: the largest number and the infinity. On inputs that hold infinities or NaN themselves a candidate
of 16 bits may also be what the oracle is where eager lost them: some of cuDNN's convolutions in half precision give the
bias where an input is infinite.

What breaks this may be chance: where rounding decides the sign below a root or a logarithm, a sum that cancels to
nothing is as often a little below zero in the candidate as in eager, at other places (`Places`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SPREAD = 2.0**-9
MULTIPLE = 2.0
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

    They are if each is uncertain and no run has more than eager itself:

    * uncertain: on inputs moved by one unit in the last place (`look`), or in float64, eager's value there is finite no
      more, or another by more than `SPREAD` of itself. Where eager has no number it is one half of the time only, so
      that some of these places may look certain;
    * eager itself: places where eager is finite and the oracle is not, or the other way round, on the same inputs and
      on those moved. Without a single one, none of the candidate's is right.
    """

    def __init__(self, eager: torch.Tensor, oracle: torch.Tensor) -> None:
        self._outputs = eager, oracle
        self._runs: list[torch.Tensor] = []
        self._uncertain: list[torch.Tensor] = []
        self._own = self._draws = 0

    def belong_to(self, eager: torch.Tensor) -> bool:
        """Whether a result is held against the same run of eager."""
        return self._outputs[0] is eager

    def add(self, places: torch.Tensor) -> None:
        """Those of one run, int64 positions in the flattened output. Not after the first `look`."""
        self._runs.append(places)

    def look(self, eager: torch.Tensor, oracle: torch.Tensor) -> None:
        """Learn from eager's and the oracle's outputs on inputs that differ by rounding."""
        import torch

        if not self._draws:
            self._uncertain = [torch.zeros_like(run, dtype=torch.bool) for run in self._runs]
            self._learn(*self._outputs)
        self._learn(eager, oracle)

    def _learn(self, eager: torch.Tensor, oracle: torch.Tensor) -> None:
        self._draws += 1
        pairs = zip(eager.reshape(-1).split(CHUNK), oracle.reshape(-1).split(CHUNK), strict=True)
        self._own += sum(int((~same_kind(e, o.to(e.dtype))).sum()) for e, o in pairs)
        for run, uncertain in zip(self._runs, self._uncertain, strict=True):
            first = self._outputs[0].reshape(-1)[run].double()
            for tensor in (eager, oracle):
                other = tensor.reshape(-1)[run.to(tensor.device)].double().to(first.device)
                uncertain |= ~same_kind(first, other)
                uncertain |= (other - first).abs() > SPREAD * first.abs()

    @property
    def are_chance(self) -> bool:
        """Whether all are. Without a `look` none is."""
        return self._draws > 0 and all(
            len(run) <= most(MULTIPLE * self._own / self._draws) and self._vary(run, uncertain)
            for run, uncertain in zip(self._runs, self._uncertain, strict=True)
        )

    def _vary(self, run: torch.Tensor, uncertain: torch.Tensor) -> bool:
        number = self._outputs[0].reshape(-1)[run].isfinite()
        certain = ~uncertain
        without = int((~number).sum())
        few = most(without * 0.5 ** (self._draws - 1))
        return not bool((certain & number).any()) and int((certain & ~number).sum()) <= few


def most(expected: float) -> int:
    """How many rare events there may be where so many are to be expected: that is uncertain by the root of it."""
    return int(expected + 3 * math.sqrt(expected))
