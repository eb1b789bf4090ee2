"""Whether a graph's outputs are less accurate with kernels than under eager and under Inductor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sandbox.accuracy.rule import Nearby, compare

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


def _of_output(number: int, nearby: Nearby | None) -> Nearby | None:
    if nearby is None:
        return None
    return lambda: (([eager[number]], [oracle[number]]) for eager, oracle in nearby())


def _differing(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left != right).double().mean()) if left.numel() else 0.0
