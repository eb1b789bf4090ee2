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
from sandbox.accuracy.misses import Misses, misses
from sandbox.accuracy.misses import unravel as _unravel
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.positions import PositionCheck
from sandbox.accuracy.report import AccuracyReport, OutputReport

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """Results on one set of inputs: the candidate's, eager's, the oracle's, in output order.

    beyond: the inputs hold infinities or NaN. written_out: the oracle's outputs by operators of their own, or none.
    pieces: gives the oracle's outputs piece by piece, in place of `oracle` and `written_out`.
    """

    outputs: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    oracle: Sequence[torch.Tensor]
    positions: Mapping[int, PositionCheck] | None = None
    beyond: bool = False
    written_out: Sequence[torch.Tensor] = ()
    pieces: Callable[[], Iterator[Piece]] | None = None

    def oracles(self) -> Iterator[Piece]:
        """The oracle's outputs in pieces, in the order of outputs where each is whole."""
        if self.pieces is not None:
            return self.pieces()
        others: Sequence[torch.Tensor | None] = self.written_out or [None] * len(self.oracle)
        pairs = zip(self.oracle, others, strict=True)
        return (Piece(number, *pair) for number, pair in enumerate(pairs))


Oracles = Sequence["torch.Tensor"] | Iterator[Piece]
Nearby = Callable[[], Iterator[tuple[Sequence["torch.Tensor"], Oracles]]]
"""Gives eager's outputs, and the oracle's whole or in pieces, on inputs that differ from a draw's by rounding. Asked
once at most."""


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
    comparison = Comparison()
    for draw in draws:
        same = zip(draw.eager, draws[-1].eager, strict=True)
        comparison.add(draw, last=all(one is other for one, other in same))
    return comparison.report(nearby)


class Comparison:
    """Of several draws from the same distribution, pooled per output, and looked at one by one.

    Of a draw with `pieces` the candidate's outputs may be gone once it was added, but for the last one's.
    """

    def __init__(self) -> None:
        self._found: list[OutputReport | ErrorPool] = []
        self._draws: list[Draw] = []

    def add(self, draw: Draw, last: bool = True) -> None:
        """Look at a draw, or at another run of one. last: it is of the draw of which others are nearby.

        Raises what the draw's `pieces` raise.
        """
        if not self._found:
            self._found = [_begun(number, draw) for number in range(len(draw.eager))]
        pools = {p.number: p for p in self._found if isinstance(p, ErrorPool)}
        may_repeat = bool(self._draws) and all(pool.may_repeat for pool in pools.values())
        if may_repeat and is_repeated(draw, self._draws[-1]):
            for pool in pools.values():
                pool.repeat_draw()
            return
        for pool in pools.values():
            pool.begin_draw(draw.eager[pool.number], last)
        for piece in draw.oracles() if pools else ():
            if piece.number in pools:
                pool = pools[piece.number]
                trio = draw.outputs[pool.number], draw.eager[pool.number], piece
                self._note(pool, pool.add_piece(*trio, draw.beyond), pools)
                del trio
            del piece  # the next one is computed in its memory
        for pool in list(pools.values()):
            self._note(pool, pool.end_draw(), pools)
        for number, report in enumerate(self._found):
            if isinstance(report, OutputReport) and report.passes:
                self._found[number] = _compare_exactly(number, draw)
        self._draws = [*(d for d in self._draws if d.pieces is None), draw]

    def _note(self, pool: ErrorPool, wrong: str, pools: dict[int, ErrorPool]) -> None:
        """What is wrong with a draw, if anything: of that output nothing more is asked."""
        if wrong:
            elements = pool.oracle.count
            self._found[pool.number] = OutputReport(
                pool.number, False, wrong, elements, error_ratio=math.inf
            )
            del pools[pool.number]

    def report(self, nearby: Nearby | None = None) -> AccuracyReport:
        """On all that was added."""
        doubtful = [p for p in self._found if isinstance(p, ErrorPool) and p.is_doubtful()]
        if doubtful and nearby:
            for eager, oracle in nearby():
                _add_nearby(doubtful, eager, oracle)
        reports = [p.report() if isinstance(p, ErrorPool) else p for p in self._found]
        return AccuracyReport(tuple(r if r.passes else self._with_misses(r) for r in reports))

    def _with_misses(self, report: OutputReport) -> OutputReport:
        """The report with where it is wrong; not for positions, of which several may be right."""
        n = report.number
        found: Misses | None = None
        for draw in self._draws:
            if draw.positions and n in draw.positions:
                return report
            with suppress(
                RuntimeError
            ):  # no memory is left on the device, and the verdict stands without
                found = _misses(n, draw)
            if found is not None and found.count:
                break
        return replace(report, misses=found)


def is_repeated(draw: Draw, last: Draw) -> bool:
    """Whether a draw is another run on the same inputs that gave the same bits. It need not be looked at again."""
    if draw.pieces is not None or last.pieces is not None:
        return False  # outputs may have been overwritten since
    pairs = [*zip(draw.eager, last.eager, strict=True), *zip(draw.oracle, last.oracle, strict=True)]
    if any(one is not other for one, other in pairs):
        return False
    return all(map(_same_bits, draw.outputs, last.outputs))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    if one.device != other.device or one.stride() != other.stride():
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    bits = getattr(torch, f"int{8 * one.itemsize}")  # a NaN is like itself
    return torch.equal(one.view(bits), other.view(bits))


def _misses(number: int, draw: Draw) -> Misses | None:
    """Of one output, or of the first piece of it in which there are some."""
    found: Misses | None = None
    for piece in draw.oracles():
        if piece.number == number:
            found = misses(draw.outputs[number], draw.eager[number], piece)
            if found.count:
                break
    return found


def _add_nearby(
    doubtful: Sequence[ErrorPool], eager: Sequence[torch.Tensor], oracle: Oracles
) -> None:
    pools = {pool.number: pool for pool in doubtful}
    for pool in doubtful:
        pool.begin_nearby(eager[pool.number])
    for piece in _in_pieces(oracle):
        if piece.number in pools:
            pools[piece.number].add_nearby_piece(eager[piece.number], piece)
        del piece
    for pool in doubtful:
        pool.end_nearby()


def _in_pieces(oracle: Oracles) -> Iterator[Piece]:
    if isinstance(oracle, Sequence):
        return (Piece(number, output) for number, output in enumerate(oracle))
    return oracle


def _begun(number: int, draw: Draw) -> OutputReport | ErrorPool:
    """Of an output in floating point what a report is to be made of; of others a report that passes so far."""
    dtype = draw.eager[number].dtype
    positions = draw.positions is not None and number in draw.positions
    exact = positions or not dtype.is_floating_point
    return OutputReport(number, True) if exact else ErrorPool(number, dtype)


def _compare_exactly(number: int, draw: Draw) -> OutputReport:
    """Of an output that holds positions, integers or booleans."""
    positions = draw.positions is not None and number in draw.positions
    reason = (_check_positions if positions else _check_equal)(number, draw)
    return OutputReport(number, not reason, reason)


EXACT_CHUNK = 1 << 26
"""Elements that have to be equal, looked at in one go."""


def _check_equal(number: int, draw: Draw) -> str:
    found, wanted = draw.outputs[number], draw.eager[number]
    parts = (tensor.reshape(-1).split(EXACT_CHUNK) for tensor in (found, wanted))
    count, start, first = 0, 0, ""
    for f, w in zip(*parts, strict=True):
        wrong = (f.to(w.device) != w).nonzero().flatten()
        if len(wrong) and not first:
            place = list(_unravel(start + int(wrong[0]), found.shape))
            values = f"{f[wrong[0]].item()} instead of {w[wrong[0]].item()}"
            first = f"first at {place}: {values}"
        count, start = count + len(wrong), start + len(f)
    return f"{count} of {found.numel()} elements differ, {first}" if count else ""


def _check_positions(number: int, draw: Draw) -> str:
    assert draw.positions is not None
    found, eager = draw.outputs[number], draw.eager[number]
    return draw.positions[number].wrong(found.to(eager.device), eager)
