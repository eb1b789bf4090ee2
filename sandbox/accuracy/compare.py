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
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.finiteness import MOST_PLACES, Places, wrong_places
from sandbox.accuracy.misses import Misses, misses
from sandbox.accuracy.positions import PositionCheck
from sandbox.task.specs import TensorSpec

if TYPE_CHECKING:
    import torch

RMS_MULTIPLE, MAX_MULTIPLE, GROSS_MULTIPLE = 2.0, 4.0, 16.0
GROSS_RELATIVE = 2.0**-9
MOST_CHANCE = 4.0
"""Up to how many times as much is allowed where eager's error varies between inputs that differ by rounding."""
DOUBT = 64.0
"""What exceeds what is allowed by more than this is wrong, whatever eager does nearby. Of two errors that are one
random number each, the second is more than 128 times the first once in two hundred times."""
GROUP_SIZE = 64
CHUNKS = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Elements looked at in one go. On cpu so few that torch works on them in one thread and within the
cache: with other work on the machine, waiting for each other costs threads far more than they save.
"""
_BINS, _BIAS = 2200, 1100
"""Powers of two of a float64, and the bin of 2**0; bin 0 is for zero."""
LANES = {"cpu": 1, "cuda": 512}
"""Tables of largest errors that are filled side by side. Most elements belong to a few groups, and a device that raises
one number for all elements of a group does so one after the other, for longer than all else in a comparison takes."""


@dataclass(frozen=True)
class OutputReport:
    """One output. Errors are absolute; `*_allowed` is the bound they were held against."""

    number: int
    passes: bool
    reason: str = ""
    elements: int = 0
    rms_error: float = 0.0
    rms_eager: float = 0.0
    rms_allowed: float = 0.0
    max_error: float = 0.0
    max_eager: float = 0.0
    max_allowed: float = 0.0
    error_ratio: float = 0.0
    """RMS error over that of eager, or over the rounding floor where eager was better than it."""
    misses: Misses | None = None
    """Where it is wrong, if it is, on the first draw on which an element is."""


@dataclass(frozen=True)
class AccuracyReport:
    """All outputs of one or more draws."""

    outputs: tuple[OutputReport, ...]

    @property
    def passes(self) -> bool:
        """Whether every output passes."""
        return all(output.passes for output in self.outputs)

    @property
    def reason(self) -> str:
        """The first failure, empty if there is none."""
        failed = [f"output {o.number}: {o.reason}" for o in self.outputs if not o.passes]
        return failed[0] if failed else ""

    @property
    def error_ratio(self) -> float:
        """The worst of the outputs."""
        return max((output.error_ratio for output in self.outputs), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Draw:
    """Results on one set of inputs: the candidate's, eager's, the oracle's, in output order.

    beyond: the inputs hold infinities or NaN.
    """

    outputs: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    oracle: Sequence[torch.Tensor]
    positions: Mapping[int, PositionCheck] | None = None
    beyond: bool = False


Nearby = Callable[[], Iterator[tuple[Sequence["torch.Tensor"], Sequence["torch.Tensor"]]]]
"""Gives eager's and the oracle's outputs on inputs that differ from a draw's by rounding. Asked once at most."""


def check_metadata(
    found: Sequence[tuple[str, Sequence[int], Sequence[int]]], specs: Sequence[TensorSpec]
) -> str:
    """What is wrong with dtypes, shapes or strides (dtype, shape, stride per output); else empty."""
    if len(found) != len(specs):
        return f"{len(found)} outputs instead of {len(specs)}"
    for number, ((dtype, shape, stride), spec) in enumerate(zip(found, specs, strict=True)):
        if dtype != spec.dtype or tuple(shape) != spec.shape:
            wanted = f"{spec.dtype}{list(spec.shape)}"
            return f"output {number} is {dtype}{list(shape)} instead of {wanted}"
        steps = zip(spec.shape, stride, spec.stride, strict=True)
        if spec.numel and any(size > 1 and a != b for size, a, b in steps):
            return f"output {number} has strides {list(stride)} instead of {list(spec.stride)}"
    return ""


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
    doubtful = [p for p in found if isinstance(p, _Pool) and p.is_doubtful()]
    if doubtful and nearby:
        for eager, oracle in nearby():
            for pool in doubtful:
                pool.add_nearby(eager[pool.number], oracle[pool.number])
    reports = [p.report() if isinstance(p, _Pool) else p for p in found]
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


def _compare_output(number: int, draws: Sequence[Draw]) -> OutputReport | _Pool:
    """The report, or, of an output in floating point, what it is to be made of."""
    first = draws[0]
    if first.positions and number in first.positions:
        return _first_failure(number, (_check_positions(number, draw) for draw in draws))
    if not first.eager[number].dtype.is_floating_point:
        return _first_failure(number, (_check_equal(number, draw) for draw in draws))
    last = draws[-1]  # of whose inputs others are nearby
    pool = _Pool(number, first.eager[number].dtype, Places(last.eager[number], last.oracle[number]))
    for draw in draws:
        trio = draw.outputs[number], draw.eager[number], draw.oracle[number]
        wrong = pool.add(*trio, draw.beyond)
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


@dataclass
class _Total:
    """How many some values are, their squares' sum, and the largest."""

    count: int = 0
    squares: float = 0.0
    largest: float = 0.0

    def add(self, values: torch.Tensor) -> None:
        """values: float64 [n], n > 0, not negative."""
        import torch

        self.count += len(values)
        self.squares += _squared(float(torch.linalg.vector_norm(values)))
        self.largest = max(self.largest, float(values.max()))

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / max(self.count, 1))


def _together(totals: Sequence[_Total]) -> _Total:
    return _Total(
        sum(total.count for total in totals),
        sum(total.squares for total in totals),
        max(total.largest for total in totals),
    )


class _Pool:
    """Errors of one output over several draws, gathered chunk by chunk."""

    def __init__(self, number: int, dtype: torch.dtype, places: Places) -> None:
        import torch

        self.number, self.dtype, self.places = number, dtype, places
        self.not_finite = ""
        """What is wrong at the first of these places, if there are any."""
        self.unmatched = 0
        """Elements that are not finite in eager alone."""
        limits = torch.finfo(dtype)
        # Eager and oracle are one where the task is in float64 already: only the floor is left,
        # and it has to cover another order of summation.
        # Half precision is left its rounding and no more.
        self.eps = limits.eps * {torch.float64: 32.0, torch.float32: 1.0}.get(dtype, 0.5)
        self.tiny = 4 * limits.tiny
        self.candidate, self.oracle = (
            _Total(),
            _Total(),
        )  # the candidate's errors, the oracle's values
        self.fourths = 0.0  # of the oracle
        self.eager: list[_Total] = []  # errors, by draw
        self.nearby: list[_Total] = []  # eager's errors on inputs near those of the last draw
        self.counts: torch.Tensor | None = None  # elements by power of two, int64 [bins]
        self.tops: list[torch.Tensor] = []  # largest error of candidate and eager in each, [bins]

    def add(
        self, found: torch.Tensor, eager: torch.Tensor, oracle: torch.Tensor, beyond: bool = False
    ) -> str:
        """Add a draw; what is wrong with its NaN and infinities where it cannot be chance, else empty."""
        import torch

        self.eager.append(_Total())
        chunk = CHUNKS[oracle.device.type]
        parts = [tensor.reshape(-1).split(chunk) for tensor in (found, eager, oracle)]
        start, places, values = 0, [], []
        for piece in zip(*parts, strict=True):
            c, e, o = (tensor.double() for tensor in piece)
            wrong = self._add_chunk(c, e, o, beyond)
            if len(wrong):
                place = _unravel(start + int(wrong[0]), found.shape)
                pair = f"{c[wrong[0]].item()} instead of {e[wrong[0]].item()}"
                text = f"not finite in other places than eager, at {place}: {pair}"
                self.not_finite = self.not_finite or text
                places.append(start + wrong)
                values.append(c[wrong])
                too_many = sum(map(len, places)) > MOST_PLACES
                if too_many or beyond or not self.places.belong_to(eager):
                    return text
            start += len(c)
        if places:
            self.places.add(torch.cat(places), torch.cat(values))
        return ""

    def _add_chunk(
        self, c: torch.Tensor, e: torch.Tensor, o: torch.Tensor, beyond: bool
    ) -> torch.Tensor:
        """Where it is not finite as it should be."""
        import torch

        wrong = torch.empty(0, dtype=torch.int64, device=o.device)
        if not bool(torch.isfinite(c.sum() + e.sum())):
            wrong = wrong_places(c, e, o, self.dtype, beyond)
            both = c.isfinite() & o.to(self.dtype).isfinite()
            alone, keep = both & ~e.isfinite(), both & e.isfinite()
            self.unmatched += int(alone.sum())
            self._group(o[alone].abs(), [(c - o)[alone].abs()])
            c, e, o = c[keep], e[keep], o[keep]
        elif not bool(torch.isfinite(o.sum())):
            keep = o.isfinite()
            c, e, o = c[keep], e[keep], o[keep]
        self._add_finite(c, e, o)
        return wrong

    def _add_finite(self, c: torch.Tensor, e: torch.Tensor, o: torch.Tensor) -> None:
        import torch

        if not len(o):
            return
        size = o.abs()
        errors = [(c - o).abs_(), (e - o).abs_()]
        totals = self.candidate, self.eager[-1], self.oracle
        for total, values in zip(totals, (*errors, size), strict=True):
            total.add(values)
        # torch's own norm of order 4 takes powers, ten times as long
        self.fourths += _squared(float(torch.linalg.vector_norm(size.square())))
        self._group(size, errors)

    def _group(self, size: torch.Tensor, errors: Sequence[torch.Tensor]) -> None:
        """errors: the candidate's, and eager's where it has one."""
        import torch

        bins = _bins(size)
        if self.counts is None:
            self.counts = torch.zeros(_BINS, dtype=torch.int64, device=size.device)
            self.tops = [torch.zeros(_BINS, dtype=size.dtype, device=size.device) for _ in range(2)]
        self.counts += torch.bincount(bins, minlength=_BINS)
        raise_tops(self.tops, bins, errors)

    def add_nearby(self, eager: torch.Tensor, oracle: torch.Tensor) -> None:
        """Add eager's errors to what the candidate's are held against, and its NaN and infinities to what may be
        chance."""
        if self.not_finite:
            self.places.look(eager, oracle)
        if self.counts is None:
            return
        chunk = CHUNKS[oracle.device.type]
        parts = [tensor.reshape(-1).split(chunk) for tensor in (eager, oracle)]
        errors = _Total()
        for piece in zip(*parts, strict=True):
            e, o = (tensor.to(self.tops[1].device).double() for tensor in piece)
            keep = e.isfinite() & o.isfinite()
            e, o = e[keep], o[keep]
            error = (e - o).abs_()
            raise_tops(self.tops[1:], _bins(o.abs()), [error])
            if len(o):
                errors.add(error)
        if self.dtype.itemsize > 2:
            self.nearby.append(errors)

    def is_doubtful(self) -> bool:
        """Whether it is wrong, and may be right next to eager's errors on inputs nearby."""
        found = self.report()
        far = found.rms_error > DOUBT * found.rms_allowed
        return bool(found.reason) and not (far or found.max_error > DOUBT * found.max_allowed)

    def report(self) -> OutputReport:
        """The decision on all that was added."""
        candidate, oracle = self.candidate, self.oracle
        eager, last = _together(self.eager), self.eager[-1]
        slack = 1 + 3 / math.sqrt(self._counting())
        floor = self.eps * oracle.rms * slack + self.tiny
        rms_eager = _with_chance(eager.rms, last.rms, [near.rms for near in self.nearby], slack)
        nearby = [near.largest for near in self.nearby]
        max_eager = _with_chance(eager.largest, last.largest, nearby, slack)
        rms_allowed = RMS_MULTIPLE * rms_eager + floor
        max_allowed = MAX_MULTIPLE * (max_eager + self.eps * oracle.largest)
        max_allowed += self.tiny
        fine = not self.not_finite or self.places.are_chance
        reason = self._gross() if fine else self.not_finite
        if candidate.rms > rms_allowed:
            found = f"RMS error {candidate.rms:.3g}, eager's {eager.rms:.3g}"
            reason = f"{found}, allowed {rms_allowed:.3g}"
        elif candidate.largest > max_allowed:
            found = f"largest error {candidate.largest:.3g}, eager's {eager.largest:.3g}"
            reason = f"{found}, allowed {max_allowed:.3g}"
        return OutputReport(
            number=self.number,
            passes=not reason,
            reason=reason,
            elements=oracle.count,
            rms_error=_finite(candidate.rms),
            rms_eager=_finite(eager.rms),
            rms_allowed=_finite(rms_allowed),
            max_error=_finite(candidate.largest),
            max_eager=_finite(eager.largest),
            max_allowed=_finite(max_allowed),
            error_ratio=_finite(candidate.rms / max(eager.rms, floor)) if fine else math.inf,
        )

    def _counting(self) -> float:
        """How many elements make up the RMS of the oracle."""
        n = max(self.oracle.count, 1)
        ratio = self.oracle.squares / math.sqrt(self.fourths) if self.fourths > 0 else math.nan
        return min(max(ratio * ratio, 1.0), n) if math.isfinite(ratio) else n

    def _gross(self) -> str:
        if self.counts is None or (self.oracle.count < GROUP_SIZE and not self.unmatched):
            return ""
        relative = max(GROSS_RELATIVE, MAX_MULTIPLE * self.eps)
        filled = self.counts.nonzero().flatten()
        groups = (filled, self.counts[filled], self.tops[0][filled], self.tops[1][filled])
        eager = worst = 0.0
        # From the largest numbers down; a well-filled group stands on its own. Exact zeros do not: what a
        # ReLU or a clamp made zero was, before it, as uncertain as its neighbours.
        for bin_, count, found, own in reversed(
            list(zip(*(g.tolist() for g in groups), strict=True))
        ):
            worst = max(worst, own)
            eager = own if count >= GROUP_SIZE else max(eager, own)
            eager = eager if bin_ else worst
            size = math.ldexp(1.0, min(bin_ - _BIAS, 1000)) if bin_ else 0.0
            allowed = GROSS_MULTIPLE * eager + relative * size + self.tiny
            if found > allowed:
                return f"error {found:.3g} on values of size {size:.3g}, allowed {allowed:.3g}"
        return ""


def _with_chance(own: float, last: float, nearby: Sequence[float], slack: float) -> float:
    """Eager's error with what is allowed for chance.

    own: over all draws. last: on the last of them. nearby: on inputs near that one's, if they were asked for. An error
    of zero says nothing of what others may be.
    """
    varies = [error for error in (last, *nearby) if 0 < error < math.inf]
    if not varies:
        return own * slack
    largest, least = max(varies), min(varies)
    chance = min(largest / least, MOST_CHANCE)
    if own > 0 and last > 0:  # of a pool that others than the last make up, as many times as much
        largest = min(largest, own * (largest / last))
    return max(own, largest) * max(slack, chance)


def raise_tops(
    tops: Sequence[torch.Tensor], bins: torch.Tensor, errors: Sequence[torch.Tensor]
) -> None:
    """Raise each group's largest error, in place. A maximum is the same in whatever order it is taken.

    tops: float64 [_BINS], not negative, as many as `errors` or more. bins: int64 [n]. errors: as `tops`, but [n].
    """
    import torch

    lanes = LANES[bins.device.type]
    if lanes == 1 or len(bins) <= lanes:
        for top, values in zip(tops, errors, strict=False):
            top.scatter_reduce_(0, bins, values, "amax")
        return
    # Neighbours go to different tables.
    places = torch.arange(len(bins), device=bins.device).remainder_(lanes).mul_(_BINS).add_(bins)
    for top, values in zip(tops, errors, strict=False):
        tables = top.new_zeros(lanes * _BINS).scatter_reduce_(0, places, values, "amax")
        torch.maximum(top, tables.view(lanes, _BINS).amax(0), out=top)


def _bins(size: torch.Tensor) -> torch.Tensor:
    """The group of each element, int64."""
    import torch

    return torch.frexp(size)[1].long().add_(_BIAS).masked_fill_(size == 0, 0)


def _squared(value: float) -> float:
    """Infinite where it is too large: a power of floats raises instead."""
    return value * value


def _finite(value: float) -> float:
    """For JSON, which has no infinity."""
    return value if value < 1e300 else 1e300


def _unravel(position: int, shape: Sequence[int]) -> list[int]:
    place: list[int] = []
    for size in reversed(shape):
        place.insert(0, position % size)
        position //= size
    return place
