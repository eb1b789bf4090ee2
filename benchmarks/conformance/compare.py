"""Is a forced graph's result right? By the judge's rule against eager and float64, then against Inductor.

Where eager's own error is no yardstick (it takes another way than the graph that Inductor makes), Inductor's results
are; and where eager and Inductor disagree by the same rule, nobody says what is right: that is unsettled, not wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sandbox.accuracy.finiteness import same_kind
from sandbox.accuracy.report import AccuracyReport
from sandbox.accuracy.rule import Draw, Nearby, compare_draws

EQUAL, AS_INDUCTOR, UNSETTLED, WRONG = "equal", "as inductor", "unsettled", "wrong"
FAR = 8.0
"""A result this many times as far from eager as Inductor is takes no excuse from their disagreement."""


@dataclass(frozen=True)
class Values:
    """What a call gave: outputs, then gradients, by name. changed: inputs that it wrote to. shared: (output, input)
    that lie in the same memory."""

    named: dict[str, Tensor]
    changed: tuple[int, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Finding:
    """What is said of a result. reason: the first difference; ratio: its error over eager's. whole_numbers: it is
    wrong in a tensor of whole numbers, which may be positions."""

    verdict: str
    reason: str = ""
    ratio: float = 0.0
    whole_numbers: bool = False


@dataclass(frozen=True)
class Yardsticks:
    """What a result is held against. wide: the same in float64. inductor: asked for once something differs from eager;
    None where Inductor itself fails. nearby: eager and float64 on inputs moved by a rounding (see `sandbox.accuracy`).
    """

    eager: Values
    wide: Values
    inductor: Callable[[], Values | None]
    nearby: Callable[[], Iterator[tuple[Values, Values]]] | None = None
    beyond: bool = False


def judge(found: Values, held: Yardsticks) -> Finding:
    """Compare a result with eager's, and those of its tensors with Inductor's that are not as eager's."""
    first = _against(found, held.eager, held)
    if not first.reason:
        return Finding(EQUAL, ratio=first.ratio)
    inductor = held.inductor()
    if inductor is None:
        return Finding(UNSETTLED, f"Inductor fails; {first.reason}", first.ratio)
    own, other = (_only(first.names, values) for values in (found, inductor))
    if not _against(own, other, held).reason:
        return Finding(AS_INDUCTOR, first.reason, first.ratio)
    rest = ""
    if held.beyond and first.names:
        rest = _against(_settled(found, held), held.eager, held).reason
        if not rest:
            return Finding(UNSETTLED, first.reason, first.ratio)
    disagree = _against(inductor, held.eager, held).reason
    if disagree and _where_they_agree(found, held, inductor):
        return Finding(UNSETTLED, first.reason, first.ratio)
    told = f"{first.reason}; and {rest}" if rest and rest != first.reason else first.reason
    return Finding(WRONG, told, first.ratio, first.whole_numbers)


@dataclass(frozen=True)
class _Difference:
    """names: of the tensors that differ; none where more than their numbers does."""

    reason: str
    ratio: float = 0.0
    whole_numbers: bool = False
    names: tuple[str, ...] = ()


def _only(names: Sequence[str], values: Values) -> Values:
    """The values of these names, or all where there are none."""
    if not names or not values.named.keys() >= set(names):
        return values
    return replace(values, named={name: values.named[name] for name in names})


def _settled(found: Values, held: Yardsticks) -> Values:
    """The result as eager's where eager has lost a number that float64 has, and the result is no number either: terms
    overflow there, in one order of a sum to both signs, which makes NaN, and in another to one. Where the number is
    beyond the dtype, NaN for an infinity stays wrong. The judge takes all that for wrong: its own inputs are no such.
    """

    def one(name: str, own: Tensor) -> Tensor:
        if not own.dtype.is_floating_point:
            return own
        eager, exact = held.eager.named[name], held.wide.named[name]
        overflowed = own.isinf() & eager.isnan() & exact.isfinite()
        reverse = own.isnan() & eager.isinf() & exact.to(own.dtype).isfinite()
        return torch.where(overflowed | reverse, eager, own)

    return replace(found, named={name: one(name, own) for name, own in found.named.items()})


def _against(found: Values, other: Values, held: Yardsticks) -> _Difference:
    if found.named.keys() != other.named.keys():
        return _Difference("other outputs or gradients")
    if found.changed != other.changed:
        return _Difference(f"wrote to inputs {found.changed} instead of {other.changed}")
    if found.shared != other.shared:
        return _Difference(f"shares (output, input) {found.shared} instead of {other.shared}")
    names = list(found.named)
    for name in names:
        if reason := _form(found.named[name], other.named[name]):
            return _Difference(f"{name}: {reason}")
    report = _report(names, found, other, held)
    ratio = min(report.error_ratio, 1e9) if report.outputs else 0.0
    differing = tuple(names[output.number] for output in report.outputs if not output.passes)
    for output in report.outputs:
        if not output.passes:
            more = (
                f" ({output.misses.count} of {output.misses.elements} elements)"
                if output.misses
                else ""
            )
            name = names[output.number]
            more += _kinds(found.named[name], other.named[name])
            whole = not found.named[name].dtype.is_floating_point
            return _Difference(f"{name}: {output.reason}{more}", ratio, whole, differing)
    return _Difference("", ratio)


def _kinds(found: Tensor, other: Tensor) -> str:
    """How often which kind of number stands for another one, the most frequent first."""

    def kinds(x: Tensor) -> list[str]:
        names = (("nan", x.isnan()), ("inf", x.isposinf()), ("-inf", x.isneginf()))
        said = ["a number"] * x.numel()
        for name, where in names:
            for place in where.reshape(-1).nonzero().reshape(-1).tolist():
                said[place] = name
        return said

    if not found.dtype.is_floating_point or bool((found.isfinite() & other.isfinite()).all()):
        return ""
    pairs = Counter(zip(kinds(found), kinds(other), strict=True))
    told = ", ".join(f"{n} {a} for {b}" for (a, b), n in pairs.most_common() if a != b)
    return f": {told}" if told else ""


def _form(one: Tensor, other: Tensor) -> str:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype}{list(one.shape)} instead of {other.dtype}{list(other.shape)}"
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    if one.numel() and any(size > 1 and a != b for size, a, b in steps):
        return f"strides {list(one.stride())} instead of {list(other.stride())}"
    return ""


def _report(names: Sequence[str], found: Values, other: Values, held: Yardsticks) -> AccuracyReport:
    def of(values: Values) -> list[Tensor]:
        return [values.named[name] for name in names]

    def nearby() -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        assert held.nearby is not None
        for eager, wide in held.nearby():
            yield of(eager), of(wide)

    if not names:
        return AccuracyReport(())
    draw = Draw(of(found), of(other), of(held.wide), None, held.beyond)
    asked: Nearby | None = nearby if held.nearby else None
    return compare_draws([draw], asked)


def alike(one: Values, other: Values) -> bool:
    """Whether two runs gave the same but for rounding."""
    return one.named.keys() == other.named.keys() and all(
        x.shape == other.named[name].shape and bool(_near(other.named[name], x).all())
        for name, x in one.named.items()
    )


def _where_they_agree(found: Values, held: Yardsticks, inductor: Values) -> bool:
    """Whether a result is theirs wherever eager and Inductor nearly agree, or what they both lost."""
    for name, own in found.named.items():
        one, two = held.eager.named[name], inductor.named[name]
        if _form(own, one) and not _form(two, one):
            return False
        if own.shape != one.shape or two.shape != one.shape:
            continue
        settled = torch.isclose(one, two, rtol=1e-3, atol=0.0, equal_nan=True)
        wrong = settled & ~_near(own, one)
        if own.dtype.is_floating_point:
            apart = (one.double() - two.double()).abs()
            wrong |= (own.double() - one.double()).abs() > FAR * apart + _noise(one)
            exact = held.wide.named[name].to(own.dtype)
            right = same_kind(own.double(), exact.double()) & _near(own, exact)
            wrong &= one.isfinite() | ~right
        if bool((wrong & ~_near(own, one)).any()):
            return False
    return True


def _near(x: Tensor, wanted: Tensor) -> Tensor:
    """Where two tensors are equal but for rounding, that of sums which cancel too."""
    return torch.isclose(x, wanted, rtol=2e-2, atol=_noise(wanted), equal_nan=True)


def _noise(x: Tensor) -> float:
    """What rounding may make of a sum that cancels: a little of the largest number."""
    if not x.dtype.is_floating_point or not x.numel():
        return 0.0
    return float(x.nan_to_num(0.0, 0.0, 0.0).abs().max()) * 16 * torch.finfo(x.dtype).eps
