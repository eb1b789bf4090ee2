"""The runs that schedules choose keep sums of products within what the judge allows, by a model of the tensor core.

The model: an instruction aligns its products and the sum that they are added to with the largest of them, cuts them off
some bits below float32's last one, and the result to float32. Which bits is not documented; it reproduces what
was measured on an H200 for none to two of them. Eager: one multiply-add after the other, each rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_agent_backend.codegen.cuda.gemm.candidates import WARP_RUNS, WGMMA_RUNS, runs_for
from cuda_agent_backend.codegen.cuda.gemm.tiles import WGMMA_DEPTH
from sandbox.accuracy.error_pool import RMS_MULTIPLE

Floats = NDArray[np.float32]
Generator = np.random.Generator
Pairs = list[tuple[int, int]]
Sum = Callable[[Floats, Floats, int], Floats]
EPS = 2.0**-23
SIZE, TERMS, PARTS = 24, 16, 3
"""Rows and columns looked at, terms of an instruction, bfloat16 numbers that each number is split into."""
LARGER, TOP = 64, 15
"""What is left of a number is multiplied by, and the power of two that numbers are brought below, for float16."""
GUARD_BITS = (0, 1, 2)
MARGIN = 1.3


def cut_off(x: NDArray[np.float64]) -> Floats:
    near = x.astype(np.float32)
    return np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def bfloat16(x: Floats) -> Floats:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def in_three(x: Floats) -> list[Floats]:
    parts = []
    for _ in range(PARTS):
        parts.append(bfloat16(x))
        x = x - parts[-1]
    return parts


def float16(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def in_two(x: Floats) -> list[Floats]:
    """A number, a part of it, and as many times what is left."""
    near = float16(x)
    return [near, float16(near / LARGER), float16((x - near) * LARGER)]


def scaled(x: Floats) -> tuple[Floats, np.float32]:
    scale = np.float32(np.ldexp(1.0, TOP - int(np.frexp(np.abs(x).max())[1])))
    return x * scale, 1 / scale


def product(total: Floats, a: Floats, b: Floats, guard: int) -> Floats:
    """The sum after one instruction."""
    products = a.astype(np.float64)[:, None, :] * b.astype(np.float64)[None, :, :]
    addends = np.concatenate([products, total.astype(np.float64)[:, :, None]], 2)
    last = np.ldexp(1.0, np.frexp(np.abs(addends).max(2))[1] - 24 - guard)[:, :, None]
    return cut_off((np.trunc(addends / last) * last).sum(2))


SIX = [(number, both - number) for both in reversed(range(PARTS)) for number in range(both + 1)]
THREE = [(2, 1), (1, 2), (0, 0)]
"""Which parts are multiplied: small products first."""


def instructions(pairs: Pairs, start: int, end: int) -> Iterator[tuple[int, int, slice]]:
    for left, right in pairs:
        for k in range(start, end, TERMS):
            yield left, right, slice(k, min(k + TERMS, end))


def on_tensor_cores(a: Floats, b: Floats, run: int, chunk: int, guard: int) -> Floats:
    left, right, k = in_three(a), in_three(b), a.shape[1]
    total = np.zeros((len(a), len(b)), np.float32)
    own = total
    for start in range(0, k, chunk):
        for i, j, terms in instructions(SIX, start, min(start + chunk, k)):
            own = product(own, left[i][:, terms], right[j][:, terms], guard)
        if (start + chunk) % run == 0 or start + chunk >= k:
            total, own = total + own, np.zeros_like(own)
    return total


def by_three_products(a: Floats, b: Floats, guard: int) -> Floats:
    """Stages are scaled by what a block has of them."""
    total = np.zeros((len(a), len(b)), np.float32)
    for start in range(0, a.shape[1], WGMMA_DEPTH):
        stage = slice(start, start + WGMMA_DEPTH)
        (x, back_x), (y, back_y) = scaled(a[:, stage]), scaled(b[:, stage])
        left, right, own = in_two(x), in_two(y), np.zeros_like(total)
        for i, j, terms in instructions(THREE, 0, x.shape[1]):
            own = product(own, left[i][:, terms], right[j][:, terms], guard)
        total = total + own * (back_x * back_y)
    return total


def one_by_one(a: Floats, b: Floats) -> Floats:
    total = np.zeros((len(a), len(b)), np.float32)
    for x, y in zip(a.T.astype(np.float64), b.T.astype(np.float64), strict=True):
        total = (total + np.outer(x, y)).astype(np.float32)
    return total


def normal(random: Generator, k: int) -> tuple[Floats, Floats]:
    a, b = (random.standard_normal((SIZE, k)).astype(np.float32) for _ in range(2))
    return a, b


def ramp(random: Generator, k: int) -> tuple[Floats, Floats]:
    """Signs alternate along the last dimension, which is that of the terms for one operand only: sums cancel."""

    def line(rows: int, length: int) -> Floats:
        step = np.arange(length)
        signs = 1 - 2 * (step % 2)
        noise = random.standard_normal((rows, length)) * 0.01
        return (noise + signs * (1 + step / length * 7)).astype(np.float32)

    return line(SIZE, k), np.ascontiguousarray(line(k, SIZE).T)


def share_of_what_is_allowed(a: Floats, b: Floats, way: Sum) -> float:
    exact = a.astype(np.float64) @ b.T.astype(np.float64)

    def error(found: Floats) -> float:
        return float(np.sqrt(((found - exact) ** 2).mean()))

    allowed = RMS_MULTIPLE * error(one_by_one(a, b)) + EPS * float(np.sqrt((exact**2).mean()))
    return max(error(way(a, b, guard)) for guard in GUARD_BITS) / allowed


def six(run: int, chunk: int) -> Sum:
    return lambda a, b, guard: on_tensor_cores(a, b, run, chunk, guard)


def chosen_runs(k: int) -> set[tuple[int, int]]:
    """(run, terms whose small products come first), of warps and of warp groups."""
    return {(run, run) for run in WARP_RUNS} | {(run, WGMMA_DEPTH) for run in runs_for(k)}


@pytest.mark.parametrize("inputs", [normal, ramp])
@pytest.mark.parametrize("k", [64, 100, 128, 256, 576, 1024, 1032, 2048, 4088, 4096])
def test_the_chosen_runs_are_accurate_enough(
    k: int, inputs: Callable[[Generator, int], tuple[Floats, Floats]]
) -> None:
    a, b = inputs(np.random.default_rng(k), k)
    for run, chunk in chosen_runs(k):
        assert share_of_what_is_allowed(a, b, six(run, chunk)) < 1 / MARGIN, (run, chunk)


def test_longer_runs_would_not_be() -> None:
    a, b = ramp(np.random.default_rng(0), 1024)
    assert share_of_what_is_allowed(a, b, six(2 * WGMMA_RUNS[-1], WGMMA_DEPTH)) > 1 / MARGIN
    a, b = normal(np.random.default_rng(0), 64)
    assert share_of_what_is_allowed(a, b, six(WGMMA_RUNS[-1], WGMMA_DEPTH)) > 1 / MARGIN
    assert runs_for(64) == WGMMA_RUNS[:1]


@pytest.mark.parametrize("inputs", [normal, ramp])
def test_three_parts_hold_a_number(
    inputs: Callable[[Generator, int], tuple[Floats, Floats]],
) -> None:
    x, _ = inputs(np.random.default_rng(0), 64)
    assert np.array_equal(np.sum([p.astype(np.float64) for p in in_three(x)], 0), x)


def test_half_as_many_products_of_float16_numbers_would_not_be() -> None:
    """They hold all of a number but its last bit. Where sums cancel, eager loses less than what that bit is worth."""
    a, b = normal(np.random.default_rng(0), 1024)
    assert share_of_what_is_allowed(a, b, by_three_products) < 1 / MARGIN
    a, b = ramp(np.random.default_rng(0), 1024)
    assert share_of_what_is_allowed(a, b, by_three_products) > MARGIN
