"""Is a result as accurate as eager's? Pure functions on tensors; they know nothing of tasks.

The yardstick is a float64 result (the oracle). With e the error of eager and c that of the
candidate, over all elements that are finite in eager, candidate and oracle:

* RMS: rms(c) <= (2 * rms(e) + eps * rms(oracle)) * slack
* maximum: max|c| <= 4 * max|e| * slack + 4 * eps * max|oracle|
* gross errors: within each group of elements of similar size (powers of two),
  max|c| <= 16 * max|e| + max(2**-9, 4 * eps) * size, so that a wrong element is seen even where
  others are a million times larger. Groups of fewer than 64 elements borrow larger ones' errors.

What is owed to cancellation is by chance nearly exact in eager. One sum that almost cancels, below a root, makes the
errors of thousands of elements, and of two equally good orders of addition the second is three times in ten more than
twice as far off as the first. So before a result is wrong, unless by far, eager also runs on inputs moved by one unit
in the last place (`Nearby`). Then e is the largest of its errors, and what they vary by, up to 4, is allowed in place
of a smaller slack. Of results of 16 bits only gross errors are excused so: that unit is more than rounding to them.

eps is that of the output's dtype (half of it for 16-bit types and less). slack is
1 + 3 / sqrt(n): an RMS over few elements is itself uncertain, and eager may have been lucky on one
number; results of several draws are pooled to make it small. n is the number of elements that count
in rms(oracle): where one is a million times larger than all others, n is 1.

What is not finite must be as in eager or as in the oracle, but for chance (see `finiteness`). Where eager alone is not
finite a candidate is held against gross errors only: eager has no error there to compare with.

Integers and booleans are equal to eager's. Positions of an extremum, or of sorted elements, may differ where the values
there are equal (see `positions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sandbox.accuracy.error_pool import ErrorPool
from sandbox.accuracy.finiteness import Places
from sandbox.accuracy.misses import Misses, misses
from sandbox.accuracy.positions import PositionCheck
from sandbox.accuracy.report import AccuracyReport, OutputReport

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """Results on one set of inputs: the candidate's, eager's, the oracle's, in output order.

    beyond: the inputs hold infinities or NaN. written_out: the oracle's outputs by operators of their own, or none.
    """

    outputs: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    oracle: Sequence[torch.Tensor]
    positions: Mapping[int, PositionCheck] | None = None
    beyond: bool = False
    written_out: Sequence[torch.Tensor] = ()


Nearby = Callable[[], Iterator[tuple[Sequence["torch.Tensor"], Sequence["torch.Tensor"]]]]
"""Gives eager's and the oracle's outputs on inputs that differ from a draw's by rounding. Asked once at most."""


def compare(
    outputs: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    oracle: Sequence[torch.Tensor],
    positions: Mapping[int, PositionCheck] | None = None,
    nearby: Nearby | None = None,
) -> AccuracyReport:
    """The report on one draw. Shapes and dtypes are equal already (see `check_metadata`)."""
    return compare_draws([Draw(outputs, eager, oracle, positions)], nearby)


def compare_draws(draws: Sequence[Draw], nearby: Nearby | None = None) -> AccuracyReport:
    """The report on several draws from the same distribution, pooled per output."""
    found = [_compare_output(number, draws) for number in range(len(draws[0].outputs))]
    doubtful = [p for p in found if isinstance(p, ErrorPool) and p.is_doubtful()]
    if doubtful and nearby:
        for eager, oracle in nearby():
            for pool in doubtful:
                pool.add_nearby(eager[pool.number], oracle[pool.number])
    reports = [p.report() if isinstance(p, ErrorPool) else p for p in found]
    return AccuracyReport(tuple(r if r.passes else _with_misses(r, draws) for r in reports))


def _with_misses(report: OutputReport, draws: Sequence[Draw]) -> OutputReport:
    """The report with where it is wrong; not for positions, of which several may be right."""
    n = report.number
    found: Misses | None = None
    for draw in draws:
        if draw.positions and n in draw.positions:
            return report
        with suppress(
            RuntimeError
        ):  # no memory is left on the device, and the verdict stands without
            found = misses(draw.outputs[n], draw.eager[n], draw.oracle[n])
        if found is not None and found.count:
            break
    return replace(report, misses=found)


def _compare_output(number: int, draws: Sequence[Draw]) -> OutputReport | ErrorPool:
    """The report, or, of an output in floating point, what it is to be made of."""
    first = draws[0]
    if first.positions and number in first.positions:
        return _first_failure(number, (_check_positions(number, draw) for draw in draws))
    if not first.eager[number].dtype.is_floating_point:
        return _first_failure(number, (_check_equal(number, draw) for draw in draws))
    last = draws[-1]  # of whose inputs others are nearby
    pool = ErrorPool(
        number, first.eager[number].dtype, Places(last.eager[number], last.oracle[number])
    )
    for draw in draws:
        trio = draw.outputs[number], draw.eager[number], draw.oracle[number]
        other = draw.written_out[number] if draw.written_out else None
        wrong = pool.add(*trio, draw.beyond, other)
        if wrong:
            return OutputReport(number, False, wrong, pool.oracle.count, error_ratio=math.inf)
    return pool


def _first_failure(number: int, reasons: Iterator[str]) -> OutputReport:
    reason = next((found for found in reasons if found), "")
    return OutputReport(number, not reason, reason)


def _check_equal(number: int, draw: Draw) -> str:
    import torch

    found, wanted = draw.outputs[number], draw.eager[number]
    if torch.equal(found, wanted):
        return ""
    wrong = (found != wanted).nonzero()
    place = wrong[0].tolist()
    values = f"{found[tuple(place)].item()} instead of {wanted[tuple(place)].item()}"
    return f"{len(wrong)} of {found.numel()} elements differ, first at {place}: {values}"


def _check_positions(number: int, draw: Draw) -> str:
    assert draw.positions is not None
    return draw.positions[number].wrong(draw.outputs[number], draw.eager[number])
