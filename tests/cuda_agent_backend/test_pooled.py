"""Products that are pooled in their tiles on cuda: recognised, and right, as an emulator on the CPU runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample
from sketch_kit import on_cuda as made
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.match import match_pool
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.writer import SKETCH, pool_epilogue_writer
from cuda_agent_backend.codegen.cuda.gemm.tiles import read_tiles
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES: dict[str, Parameter] = {
    "sketch": SKETCH, "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3, "run": 16,
}  # fmt: skip
GROUPS: dict[str, Parameter] = {
    "tile_m": 128, "tile_n": 64, "depth": 32, "warp_m": 64, "warp_n": 64, "stages": 5, "run": 32, "group": 2,
}  # fmt: skip
HALF: dict[str, Parameter] = {"products": 1, "run": 0, "depth": 32}
HALF_GROUPS: dict[str, Parameter] = {**GROUPS, **HALF, "depth": 64, "stages": 4, "group": 3}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def largest(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x, w, b, padding=1).relu(), 2)


def two_ways(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, w)
    most = F.max_pool2d(y, 3)
    return most, F.avg_pool2d(y, 3) * most.sigmoid()


def wavelet(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w)
    rows = y[:, :, ::2] - 2 * y[:, :, 1::2]
    return rows[..., ::2] + 3 * rows[..., 1::2]


def of_columns(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).view(30, 10, 2).amax(2)


# odd sizes, of which the last row or column of an image has no window; rows that are no multiple of a tile
X, W, B = randn(2, 8, 11, 13), randn(20, 8, 3, 3), randn(20)
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "largest of 2 by 2": (largest, (X, W, B)),
    "means of 3 by 3, and a tail": (
        lambda x, w, b: F.avg_pool2d(F.conv2d(x, w, b, padding=1).tanh(), 3) * 2 + 1, (X, W, B),
    ),
    "means in channels last": (
        lambda x, w, b: F.avg_pool2d(F.conv2d(x, w, b, stride=(1, 2)).relu(), 2),
        (channels_last(X), channels_last(W), B),
    ),
    "windows of several sizes": (lambda x, w: F.avg_pool2d(F.conv2d(x, w), (2, 3)), (X, W)),
    "pooled in two ways, one used twice": (two_ways, (X, W)),
    "a residual": (
        lambda x, w, r, s: F.max_pool2d(F.conv2d(x, w, padding=1) + r, 2) + s,
        (X, W, randn(2, 20, 11, 13), randn(2, 20, 5, 6)),
    ),
    "means of 5 by 5": (lambda x, w: F.avg_pool2d(F.conv2d(x, w, padding=1), 5).exp(), (X, W)),
    "filters of 1 by 1": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w), 2), (randn(2, 8, 12, 14), randn(20, 8, 1, 1)),
    ),
    "groups of channels": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, groups=2), 2), (X, randn(20, 4, 3, 3)),
    ),
    "one dimension": (lambda x, w: F.max_pool1d(F.conv1d(x, w), 2), (randn(3, 8, 21), randn(16, 8, 3))),
    "three dimensions": (
        lambda x, w: F.max_pool3d(F.conv3d(x, w), 2), (randn(2, 4, 6, 7, 6), randn(8, 4, 3, 3, 3)),
    ),
    "neither largest nor mean": (wavelet, (randn(2, 8, 10, 12), W)),
    "neighbouring rows of a product": (
        lambda x, w: (x @ w).view(10, 3, 20).amax(1), (randn(30, 16), randn(16, 20)),
    ),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return made(function, *inputs)


def pooled(it: Sample, **change: Parameter) -> tuple[str, Any]:
    """Source and plan of the only kernel that there is in such tiles."""
    schedule = Schedule.of(TILES | change)
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


def check(it: Sample, function: Callable[..., Any], folder: Path, **change: Parameter) -> None:
    """Results are as near to those in float64 as eager's."""
    source, plan = pooled(it, **change)
    want = function(*(x.double() for x in it.inputs))
    wants = [want] if isinstance(want, Tensor) else want
    for mine, theirs, exact in zip(
        cuda_emulator.run(source, plan, it.inputs, folder), it.want, wants, strict=True
    ):
        assert mine.shape == theirs.shape
        assert relative(mine, exact) < 2 * relative(theirs, exact) + 1e-7


@pytest.mark.parametrize("name", CASES)
def test_pooled_results_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    check(case(name), CASES[name][0], tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_what_is_pooled_is_never_written(name: str) -> None:
    it = case(name)
    _, plan = pooled(it)
    assert len(plan.steps) == 1
    assert {b.kind for b in plan.buffers} == {"input", "output"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("largest of 2 by 2", GROUPS),
        ("means of 3 by 3, and a tail", GROUPS),
        ("filters of 1 by 1", {"aligned": 1}),
        ("largest of 2 by 2", {"warp_n": 32, "tile_n": 64, "depth": 64, "warps_k": 2, "stages": 2}),
    ],
)
def test_other_ways_to_multiply_pool_the_same(
    name: str, change: dict[str, Parameter], tmp_path: Path
) -> None:
    check(case(name), CASES[name][0], tmp_path, **change)


@pytest.mark.parametrize(
    ("dtype", "change"),
    [(torch.float16, HALF), (torch.float16, HALF_GROUPS), (torch.bfloat16, HALF)],
)
def test_operands_of_16_bits(
    dtype: torch.dtype, change: dict[str, Parameter], tmp_path: Path
) -> None:
    check(made(largest, X.to(dtype), W.to(dtype), B.to(dtype)), largest, tmp_path, **change)


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("largest of 2 by 2", math.inf),
        ("largest of 2 by 2", -math.inf),
        ("largest of 2 by 2", math.nan),
        ("means in channels last", math.inf),
    ],
)
def test_what_is_not_finite_is_as_in_eager(name: str, special: float, tmp_path: Path) -> None:
    function, (x, w, b) = CASES[name]
    x, w, b = x.clone(), w.clone(), b.clone()
    x[0, 0, 5, 6], w[3, 2, 1, 1], b[7] = special, special, special
    it = made(function, x, w, b)
    (got,) = cuda_emulator.run(*pooled(it), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-4, atol=1e-4)


def kept(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, w)
    return y, F.max_pool2d(y, 2)


def first_times_third(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w)
    return y[:, :, ::3] * y[:, :, 2::3]


def of_a_mean(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w)
    return F.max_pool2d(y, 2) - y.mean()


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (kept, (X, W)),
        (of_a_mean, (X, W)),
        (first_times_third, (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 3, 2), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, 3), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, padding=1), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, dilation=2), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, ceil_mode=True), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, return_indices=True), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, return_indices=True)[1], (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w)[:, :, 1:, 1:], 2), (X, W)),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w)[:, :, :4], 2), (X, W)),
        (lambda x, w: F.glu(F.conv2d(x, w), 1), (X, W)),
        (of_columns, (randn(30, 16), randn(16, 20))),
        (lambda x, w: F.max_pool2d(F.conv_transpose2d(x, w, stride=2), 2), (X, randn(8, 20, 3, 3))),
        (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2).sum(1), (X, W)),
        (lambda x, w: F.conv2d(x, w).relu(), (X, W)),
    ],
)
def test_what_else_becomes_of_a_product_is_left_to_others(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = made(function, *inputs)
    region, kernels = it.analysis.region, it.analysis.kernels
    for number in range(len(kernels)):
        with pytest.raises(Unsupported):
            match_pool(region, kernels, number)
    offered = cuda.schedules(region, kernels, DEVICE)
    assert all(dict(k)["sketch"] != SKETCH for s in offered for k in s.kernels)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"split": 2}, "split"),
        ({"banded": 1}, "left out"),
        ({"tile_m": 16, "warp_m": 16}, "larger than a tile"),
    ],
)
def test_tiles_that_cannot_be_pooled_are_refused(change: dict[str, Parameter], reason: str) -> None:
    it = made(lambda x, w: F.max_pool2d(F.conv2d(x, w), (4, 5)), X, W)
    with pytest.raises(Unsupported, match=reason):
        pooled(it, **change)


def test_the_schedule_has_no_kernel_for_the_pooling() -> None:
    it = case("largest of 2 by 2")
    schedule = Schedule.of(TILES, {"sketch": "map", "vector": 1})
    with pytest.raises(Unsupported, match="2 kernels where there are 1"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


def test_what_reads_what_was_pooled_is_a_kernel_behind(tmp_path: Path) -> None:
    it = made(lambda x, w, b: F.max_pool2d(largest(x, w, b), 3, 1) * 2, X, W, B)
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = [
        s for s in cuda.schedules(region, kernels, DEVICE) if dict(s.kernels[0])["sketch"] == SKETCH
    ]
    source, plan = cuda.emit(region, kernels, offered[0], DEVICE)
    assert [len(s.kernels) for s in offered] == [len(kernels) - 1] * len(offered)
    assert [b.spec.shape for b in plan.buffers if b.kind == "temporary"] == [(2 * 20 * 5 * 6,)]
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "first"), [(96, True), (12, False)])
def test_both_ways_are_offered(size: int, first: bool) -> None:
    image, filters = torch.empty(8, 64, size, size), torch.empty(96, 64, 3, 3)
    it = made(largest, image, filters, torch.empty(96))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    ways = [s.parameters(0)["sketch"] == SKETCH for s in offered]
    assert ways[:2] == [first, not first]
    for schedule in offered:
        cuda.emit(region, kernels, schedule, DEVICE)


def test_rows_that_a_tile_has_in_vain_are_counted_and_not_read() -> None:
    # ten windows of 3 in a tile of 32 rows, so that it is the fourth that ends within
    it = made(lambda x, w: (x @ w).view(32, 3, 20).amax(1), randn(96, 16), randn(16, 20))
    pooling = match_pool(it.analysis.region, it.analysis.kernels, 0)
    assert pool_epilogue_writer(pooling, read_tiles(TILES), DEVICE).share == 32 / 30
    source, _ = pooled(it)
    assert "there = x < 96;" in source
    assert "if (!(m < 30 && row < 96 &&" in source


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_first_schedule_compiles_without_spilling_registers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    inputs = (torch.empty(8, 64, 96, 96), torch.empty(96, 64, 3, 3), torch.empty(96))
    it = made(largest, *(x.to(dtype) for x in inputs))
    region, kernels = it.analysis.region, it.analysis.kernels
    schedule = cuda.schedules(region, kernels, DEVICE)[0]
    assert schedule.parameters(0)["sketch"] == SKETCH
    candidate = Candidate("cuda", "cuda", *cuda.emit(region, kernels, schedule, DEVICE), "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
