"""Facts about results: what they hold, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SAMPLE = 1 << 20
"""Elements of a result that are looked at for how many of them are one and the same."""


def apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """How far results differ: of floating tensors the RMS of the difference over that of the values, of others the
    share of elements that differ; the largest of all. Infinite where shapes, dtypes or where NaNs lie differ."""
    if len(one) != len(other):
        return float("inf")
    return max((_apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)


def _apart(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.is_floating_point():
        return float((one != other).float().mean())
    a, b = one.detach().float(), other.detach().float()
    size = float(torch.maximum(a.square().mean(), b.square().mean()).sqrt())
    distance = float((a - b).square_().mean().sqrt())
    if distance != distance:
        return float("inf")
    return distance / max(size, 1e-30) if distance else 0.0


def described(outputs: Sequence[Tensor]) -> dict[str, Any]:
    """finite: whether all numbers are. constant: whether each result holds one number only, and has more elements than
    one. common: the largest share that a single number has in a result of more elements than one."""
    floating = [output for output in outputs if output.is_floating_point()]
    finite = all(bool(torch.isfinite(output).all()) for output in floating)
    shares = [_common(output) for output in outputs if output.numel() > 1]
    return {
        "finite": finite,
        "constant": bool(shares) and all(share == 1.0 for share in shares),
        "common": max(shares, default=0.0),
        "shapes": [list(output.shape) for output in outputs],
        "dtypes": [str(output.dtype).removeprefix("torch.") for output in outputs],
    }


def _common(output: Tensor) -> float:
    """The share of the number that occurs most, in elements taken at even distances."""
    flat = output.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() // SAMPLE)]
    _, counts = flat.float().unique(return_counts=True)
    return float(counts.max()) / flat.numel()
