"""Whether a graph's outputs are less accurate with kernels than under eager and under Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.rule import Comparison, Draw, Nearby, compare

CHUNK = 1 << 26
"""Elements of an output, or of its first dimension where it is not contiguous, that are counted in one go."""
MORE_DIFFERENT = 1e-4
"""The part of integers and booleans that may differ beyond what is allowed for rounding."""


def less_accurate(
    outputs: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    oracle: Sequence[torch.Tensor],
    nearby: Nearby | None = None,
) -> tuple[str, float]:
    """What is less accurate than both eager and Inductor ("" if nothing), and the worst error ratio to eager.

    Integers and booleans follow from values that round differently: no more of them may differ from eager than twice as
    many as do under Inductor, plus one in ten thousand.
    """
    worst = 0.0
    for number, (ours, theirs, plain, exact) in enumerate(
        zip(outputs, reference, eager, oracle, strict=True)
    ):
        if not plain.dtype.is_floating_point:
            allowed = 2 * _differing(theirs, plain) + MORE_DIFFERENT
            if _differing(ours, plain) > allowed:
                return f"output {number}: more than {allowed:.2%} of it differs", worst
            continue
        against_eager = compare([ours], [plain], [exact])
        worst = max(worst, against_eager.error_ratio)
        if against_eager.passes or compare([ours], [theirs], [exact]).passes:
            continue
        in_doubt = compare([ours], [plain], [exact], nearby=_of_output(number, nearby))
        if not in_doubt.passes:
            return f"output {number}: {in_doubt.outputs[0].reason}", worst
    return "", worst


def less_accurate_in_pieces(
    outputs: Sequence[torch.Tensor],
    reference: Callable[[], Sequence[torch.Tensor]],
    eager: Callable[[], Sequence[torch.Tensor]],
    oracle: Callable[[], Iterator[Piece]],
    nearby: Nearby | None = None,
) -> tuple[str, float]:
    """As `less_accurate`, with what outputs are held against made when it is needed and given up after it: one of
    eager's and Inductor's outputs is there at a time, and of the oracle's one piece."""
    plain = eager()
    against = _compared(outputs, plain, oracle)
    own = against.report().outputs
    floats = [n for n, tensor in enumerate(plain) if tensor.dtype.is_floating_point]
    others = {n: _differing(outputs[n], plain[n]) for n in range(len(plain)) if n not in floats}
    few = {n: plain[n] for n in others}
    worst = max((own[n].error_ratio for n in floats), default=0.0)
    worse = [n for n in floats if not own[n].passes]
    if not worse and not any(others.values()):
        return "", worst
    del plain, against
    theirs = reference()
    for n, part in others.items():
        allowed = 2 * _differing(theirs[n], few[n]) + MORE_DIFFERENT
        if part > allowed:
            return f"output {n}: more than {allowed:.2%} of it differs", worst
    as_theirs = _compared(outputs, theirs, oracle).report().outputs
    worse = [n for n in worse if not as_theirs[n].passes]
    del theirs
    if not worse:
        return "", worst
    in_doubt = _compared(outputs, eager(), oracle).report(nearby).outputs
    wrong = [f"output {n}: {in_doubt[n].reason}" for n in worse if not in_doubt[n].passes]
    return next(iter(wrong), ""), worst


def _compared(
    outputs: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    oracle: Callable[[], Iterator[Piece]],
) -> Comparison:
    made = Comparison()
    made.add(Draw(outputs, others, [], pieces=oracle))
    return made


def _of_output(number: int, nearby: Nearby | None) -> Nearby | None:
    if nearby is None:
        return None

    def asked() -> Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]:
        for eager, oracle in nearby():
            assert isinstance(oracle, Sequence), "of what is compared whole, so is the oracle"
            yield [eager[number]], [oracle[number]]

    return asked


def _differing(left: torch.Tensor, right: torch.Tensor) -> float:
    """The part of elements that differ, counted some at a time: an output may have thousands of millions of them."""
    if left.is_contiguous() and right.is_contiguous():
        left, right = left.view(-1), right.view(-1)
    pairs = zip(left.split(CHUNK), right.split(CHUNK), strict=True)
    return sum(int((a != b).sum()) for a, b in pairs) / max(left.numel(), 1)
