"""The runs that schedules choose keep sums of products as accurate as eager's, by a model of the tensor core.

The model: a product of 8 terms is added to its sum exactly, and the result is cut off to 24 bits instead of rounded. On
an H200 errors were 0.75 to 0.85 of what it says. Eager: one multiply-add after the other, each rounded.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_agent_backend.sketch.cuda_contract_schedules import runs_for

Floats = NDArray[np.float32]
EPS = 2.0**-23
CHUNK = {False: 16, True: 32}
"""Terms whose small products come first, of warps and of warp groups."""


def cut_off(x: NDArray[np.float64]) -> Floats:
    near = x.astype(np.float32)
    return np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def tf32(x: Floats) -> Floats:
    return ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)


def product(total: Floats, a: Floats, b: Floats) -> Floats:
    return cut_off(total + a.astype(np.float64) @ b.T.astype(np.float64))


def on_tensor_cores(a: Floats, b: Floats, run: int, chunk: int) -> Floats:
    high_a, high_b = tf32(a), tf32(b)
    low_a, low_b = tf32(a - high_a), tf32(b - high_b)
    total = np.zeros((len(a), len(b)), np.float32)
    own = total
    for start in range(0, a.shape[1], chunk):
        eights = [slice(k, k + 8) for k in range(start, min(start + chunk, a.shape[1]), 8)]
        for e in eights:
            own = product(own, low_a[:, e], high_b[:, e])
            own = product(own, high_a[:, e], low_b[:, e])
        for e in eights:
            own = product(own, high_a[:, e], high_b[:, e])
        if (start + chunk) % run == 0 or start + chunk >= a.shape[1]:
            total, own = total + own, np.zeros_like(own)
    return total


def one_by_one(a: Floats, b: Floats) -> Floats:
    total = np.zeros((len(a), len(b)), np.float32)
    for x, y in zip(a.T.astype(np.float64), b.T.astype(np.float64), strict=True):
        total = (total + np.outer(x, y)).astype(np.float32)
    return total


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("k", [64, 128, 256, 576, 1024, 1032, 2048, 4088, 4096])
def test_the_chosen_run_is_as_accurate_as_eager(k: int, group: bool) -> None:
    random = np.random.default_rng(k)
    a, b = (random.standard_normal((32, k)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.T.astype(np.float64)

    def error(found: Floats) -> float:
        return float(np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()))

    best, *longer = runs_for(k, group)
    eager = error(one_by_one(a, b))
    assert error(on_tensor_cores(a, b, best, min(best, CHUNK[group]))) < eager + 0.5 * EPS
    assert all(run * 2 <= k for run in longer)
