"""Errors of one output over several draws, and the decision on them. See `compare` for the rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sandbox.accuracy.finiteness import MOST_PLACES, Places, right_as, wrong_places
from sandbox.accuracy.misses import unravel
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.report import OutputReport
from sandbox.accuracy.size_groups import BIAS, BINS, group_of, raise_tops

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
CHUNKS = {"cpu": 1 << 15, "cuda": 1 << 21}
"""Elements looked at in one go. On cpu so few that torch works on them in one thread and within the
cache: with other work on the machine, waiting for each other costs threads far more than they save. On cuda what is
worked out beside them takes 16 MB a step.
"""


@dataclass
class _Total:
    """How many some values are, their squares' sum, and the largest."""

    count: int = 0
    squares: float = 0.0
    largest: float = 0.0

    def add(self, count: int, norm: float, largest: float) -> None:
        """count: of values, more than none. norm: the root of their squares' sum."""
        self.count += count
        self.squares += _squared(norm)
        self.largest = max(self.largest, largest)

    def again(self, before: _Total) -> None:
        """Add once more what was added since it was `before`."""
        self.count += self.count - before.count
        self.squares += self.squares - before.squares

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / max(self.count, 1))


@dataclass
class _Wrong:
    """Places of one draw that are not finite as they should be, with the candidate's and the oracle's values there."""

    places: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    exact: list[torch.Tensor] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.places))

    def add(self, places: torch.Tensor, values: torch.Tensor, exact: torch.Tensor) -> None:
        self.places.append(places)
        self.values.append(values)
        self.exact.append(exact)

    def all(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        return torch.cat(self.places), torch.cat(self.values), torch.cat(self.exact)


def _together(totals: Sequence[_Total]) -> _Total:
    return _Total(
        sum(total.count for total in totals),
        sum(total.squares for total in totals),
        max(total.largest for total in totals),
    )


class ErrorPool:
    """Errors of one output over several draws, each gathered by `begin_draw`, `add_piece` for all of it, `end_draw`."""

    def __init__(self, number: int, dtype: torch.dtype) -> None:
        import torch

        self.number, self.dtype = number, dtype
        self.places: Places | None = None
        """Of the last draw, once there is one: of others nothing is chance."""
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
        self._waiting: list[tuple[int, torch.Tensor]] = []  # what chunks came to, on the device
        self.nearby: list[_Total] = []  # eager's errors on inputs near those of the last draw
        self._wrong, self._last = _Wrong(), False
        self.counts: torch.Tensor | None = None  # elements by power of two, int64 [bins]
        self.tops: list[torch.Tensor] = []  # largest error of candidate and eager in each, [bins]

    def begin_draw(self, eager: torch.Tensor, last: bool) -> None:
        """Errors that follow are another draw's, or another run's of the same. eager: its output, whole. last: others
        are nearby its inputs."""
        self.eager.append(_Total())
        counts = None if self.counts is None else self.counts.clone()
        self._before = replace(self.candidate), replace(self.oracle), self.fourths, counts
        self._wrong, self._last = _Wrong(), last
        if last and self.places is None:
            self.places = Places(eager)

    def add_piece(
        self, found: torch.Tensor, eager: torch.Tensor, piece: Piece, beyond: bool = False
    ) -> str:
        """Add a part of the draw; what is wrong with it where it cannot be chance. found, eager: the whole outputs, on
        any device."""
        chunk = CHUNKS[piece.oracle.device.type]
        own = [piece.of(tensor).reshape(-1) for tensor in (found, eager)]
        parts = [tensor.split(chunk) for tensor in (*own, piece.oracle.reshape(-1))]
        trios = list(zip(*parts, strict=True))
        try:
            return self._add_trios(trios, found.shape, piece, beyond)
        finally:
            self._settle()

    def _add_trios(
        self,
        trios: Sequence[tuple[torch.Tensor, ...]],
        shape: Sequence[int],
        piece: Piece,
        beyond: bool,
    ) -> str:
        chunk, start = CHUNKS[piece.oracle.device.type], 0
        for number, (trio, plain) in enumerate(zip(trios, _are_finite(trios), strict=True)):
            c, e, o = (tensor.to(piece.oracle.device).double() for tensor in trio)
            if plain:
                self._add_finite(c, e, o)
                start += len(c)
                continue
            wrong = self._add_chunk(c, e, o, beyond)
            if len(wrong) and piece.written_out is not None:
                other = piece.written_out.reshape(-1).split(chunk)[number]
                wrong = wrong[~right_as(c[wrong], e[wrong], other[wrong], self.dtype)]
            if len(wrong):
                at = piece.places(start + wrong, shape)
                place = list(unravel(int(at[0]), shape))
                pair = f"{c[wrong[0]].item()} instead of {e[wrong[0]].item()}"
                text = f"not finite in other places than eager, at {place}: {pair}"
                self.not_finite = self.not_finite or text
                self._wrong.add(at, c[wrong], o[wrong])
                if self._wrong.count > MOST_PLACES or beyond or not self._last:
                    return text
            start += len(c)
        return ""

    def end_draw(self) -> str:
        """After its last piece: nothing that is wrong is left to be said before the report."""
        if self._wrong.count and self.places is not None:
            self.places.add(*self._wrong.all())
        return ""

    @property
    def may_repeat(self) -> bool:
        """Whether the last draw was finite throughout."""
        return not self._wrong.count and not self.unmatched

    def repeat_draw(self) -> None:
        """Count the last draw once more, for a run that gave the very same."""
        candidate, oracle, fourths, counts = self._before
        self._before = replace(self.candidate), replace(self.oracle), self.fourths, self.counts
        self.candidate.again(candidate)
        self.oracle.again(oracle)
        self.fourths += self.fourths - fourths
        self.eager.append(replace(self.eager[-1]))
        if self.counts is not None:
            self.counts = 2 * self.counts - (0 if counts is None else counts)

    def _add_chunk(
        self, c: torch.Tensor, e: torch.Tensor, o: torch.Tensor, beyond: bool
    ) -> torch.Tensor:
        """Where it is not finite as it should be. Some element of the three is not finite."""
        import torch

        wrong = torch.empty(0, dtype=torch.int64, device=o.device)
        if not bool((c.isfinite() & e.isfinite()).all()):
            wrong = wrong_places(c, e, o, self.dtype, beyond)
            both = c.isfinite() & o.to(self.dtype).isfinite()
            alone, keep = both & ~e.isfinite(), both & e.isfinite()
            self.unmatched += int(alone.sum())
            self._group(o[alone].abs(), [(c - o)[alone].abs()])
            c, e, o = c[keep], e[keep], o[keep]
        else:
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
        found = [of for x in (*errors, size) for of in (torch.linalg.vector_norm(x), x.max())]
        # torch's own norm of order 4 takes powers, ten times as long
        found.append(torch.linalg.vector_norm(size.square()))
        self._waiting.append((len(o), torch.stack(found)))
        self._group(size, errors)

    def _settle(self) -> None:
        """Read what all chunks came to, and add it up in their order."""
        import torch

        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        totals = self.candidate, self.eager[-1], self.oracle
        read = torch.stack([found for _, found in waiting]).tolist()
        for (count, _), (*pairs, fourth) in zip(waiting, read, strict=True):
            for total, norm, largest in zip(totals, pairs[::2], pairs[1::2], strict=True):
                total.add(count, norm, largest)
            self.fourths += _squared(fourth)

    def _group(self, size: torch.Tensor, errors: Sequence[torch.Tensor]) -> None:
        """errors: the candidate's, and eager's where it has one."""
        import torch

        bins = group_of(size)
        if self.counts is None:
            self.counts = torch.zeros(BINS, dtype=torch.int64, device=size.device)
            self.tops = [torch.zeros(BINS, dtype=size.dtype, device=size.device) for _ in range(2)]
        raise_tops(self.tops, bins, errors, self.counts)

    def begin_nearby(self, eager: torch.Tensor) -> None:
        """Errors that follow are eager's on inputs nearby."""
        self._errors = _Total()
        if self.not_finite and self.places is not None:
            self.places.look(eager)

    def add_nearby_piece(self, eager: torch.Tensor, piece: Piece) -> None:
        """Add a part of them. eager: the whole output."""
        import torch

        if self.not_finite and self.places is not None:
            self.places.learn(piece)
        if self.counts is None:
            return
        chunk = CHUNKS[piece.oracle.device.type]
        pair = piece.of(eager), piece.oracle
        parts = list(zip(*(tensor.reshape(-1).split(chunk) for tensor in pair), strict=True))
        found: list[tuple[int, torch.Tensor]] = []
        for part, plain in zip(parts, _are_finite(parts), strict=True):
            e, o = (tensor.to(self.tops[1].device).double() for tensor in part)
            if not plain:  # to pick takes longer than the rest
                keep = e.isfinite() & o.isfinite()
                e, o = e[keep], o[keep]
            error = (e - o).abs_()
            raise_tops(self.tops[1:], group_of(o.abs()), [error])
            if len(o):
                both = torch.stack([torch.linalg.vector_norm(error), error.max()])
                found.append((len(o), both))
        read = torch.stack([both for _, both in found]).tolist() if found else []
        for (count, _), (norm, largest) in zip(found, read, strict=True):
            self._errors.add(count, norm, largest)

    def end_nearby(self) -> None:
        """After the last part."""
        if self.counts is not None and self.dtype.itemsize > 2:
            self.nearby.append(self._errors)

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
        fine = not self.not_finite or (self.places is not None and self.places.are_chance)
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
            size = math.ldexp(1.0, min(bin_ - BIAS, 1000)) if bin_ else 0.0
            allowed = GROSS_MULTIPLE * eager + relative * size + self.tiny
            if found > allowed:
                return f"error {found:.3g} on values of size {size:.3g}, allowed {allowed:.3g}"
        return ""


def _are_finite(parts: Sequence[tuple[torch.Tensor, ...]]) -> Iterable[bool]:
    """Of each part whether all numbers of its tensors are finite. A device is waited for once, for all parts."""
    import torch

    if not parts:
        return ()
    device = parts[0][-1].device
    if device.type == "cpu":  # as they are asked for, while they are in the cache
        return (all(bool(x.isfinite().all()) for x in part) for part in parts)
    flags = [torch.stack([x.isfinite().all().to(device) for x in part]).all() for part in parts]
    found: list[bool] = torch.stack(flags).tolist()
    return found


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


def _squared(value: float) -> float:
    """Infinite where it is too large: a power of floats raises instead."""
    return value * value


def _finite(value: float) -> float:
    """For JSON, which has no infinity."""
    return value if value < 1e300 else 1e300
