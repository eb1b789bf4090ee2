"""Products whose rows are done in their tiles on cuda: recognised, and right, as an emulator on the CPU runs them."""

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
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.match import match_rows
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.writer import SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES: dict[str, Parameter] = {
    "sketch": SKETCH, "tile_m": 32, "tile_n": 64, "depth": 16, "warp_m": 16, "warp_n": 32, "stages": 3, "run": 16,
}  # fmt: skip
GROUPS: dict[str, Parameter] = {
    "tile_m": 128, "tile_n": 64, "depth": 32, "warp_m": 64, "warp_n": 64, "stages": 5, "run": 32, "group": 2,
}  # fmt: skip
WIDER: dict[str, Parameter] = {**GROUPS, "tile_n": 136, "warp_n": 136}
HALF: dict[str, Parameter] = {"products": 1, "run": 0, "depth": 32}
HALF_GROUPS: dict[str, Parameter] = {**GROUPS, **HALF, "depth": 64, "stages": 4, "group": 3}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def classes(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.log_softmax(F.linear(x, w, b) / 0.7, dim=1)


def normed(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(F.linear(x, w, b)), (len(w),), scale, shift)


def rms(y: Tensor, scale: Tensor) -> Tensor:
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * scale


def with_residual(x: Tensor, w: Tensor, r: Tensor, scale: Tensor) -> Tensor:
    return rms(x @ w + r, scale)


def heads(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return rms((x @ w).view(len(x), -1, len(scale)), scale)


def and_wanted(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y, y.softmax(1)


def twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = (x @ w).softmax(1)
    return y, (y * y.clamp(min=1e-9).log()).sum(1)


def sharpened(x: Tensor, w: Tensor) -> Tensor:
    y = F.softmax(x @ w, 1).square()
    return y / y.sum(1, keepdim=True)


# sizes that are no multiple of a tile, or of a vector
X, W, B = randn(61, 70), randn(45, 70), randn(45)
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "log-softmax at a temperature": (classes, (X, W, B)),
    "softmax": (lambda x, w: (x @ w).softmax(1), (X, randn(70, 50))),
    "rows as wide as a tile": (lambda x, w: (x @ w).softmax(1), (randn(64, 64), randn(64, 64))),
    "a norm of a tail": (normed, (X, W, B, randn(45), randn(45))),
    "a norm of long rows": (normed, (X, randn(61, 70), randn(61), randn(61), randn(61))),
    "a norm with a residual": (with_residual, (X, randn(70, 44), randn(61, 44), randn(44))),
    "length 1": (lambda x, w: F.normalize(x @ w, dim=1), (X, randn(70, 40))),
    "norms of heads": (heads, (X, randn(70, 96), randn(32))),
    "norms of heads of which the last tile has one": (heads, (X, randn(70, 96), randn(16))),
    "one head": (heads, (X, randn(70, 48), randn(48))),
    "the product as well": (and_wanted, (X, randn(70, 40))),
    "an entropy as well": (twice, (X, randn(70, 40))),
    "reduced once more": (sharpened, (X, randn(70, 36))),
    "batches": (lambda a, b: torch.bmm(a, b).softmax(2), (randn(3, 33, 40), randn(3, 40, 50))),
    "tokens of batches": (
        lambda x, w: F.normalize(x @ w, dim=-1), (randn(3, 21, 40), randn(40, 30)),
    ),
    "filters in channels last": (
        lambda x, w: F.conv2d(x, w, padding=1).permute(0, 2, 3, 1).softmax(-1),
        tuple(x.to(memory_format=torch.channels_last) for x in (randn(2, 8, 7, 9), randn(20, 8, 3, 3))),
    ),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return made(function, *inputs)


def in_tiles(it: Sample, **change: Parameter) -> tuple[str, Any]:
    """Source and plan of the only kernel that there is in such tiles."""
    schedule = Schedule.of(TILES | change)
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


def check(case: Case, folder: Path, **change: Parameter) -> None:
    """Results are as near to those in float64 as eager's."""
    function, inputs = case
    it = made(function, *inputs)
    source, plan = in_tiles(it, **change)
    want = function(*(x.double() for x in inputs))
    wants = [want] if isinstance(want, Tensor) else list(want)
    for mine, theirs in zip(
        cuda_emulator.run(source, plan, it.inputs, folder), it.want, strict=True
    ):
        exact = min(
            (one for one in wants if one.shape == theirs.shape),
            key=lambda one: relative(theirs, one),
        )
        assert relative(mine, exact) < 2 * relative(theirs, exact) + 1e-7


@pytest.mark.parametrize("name", CASES)
def test_rows_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
    _, plan = in_tiles(case(name))
    assert len(plan.steps) == 1
    assert {b.kind for b in plan.buffers} == {"input", "output"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("log-softmax at a temperature", GROUPS),
        ("norms of heads", GROUPS),
        ("norms of heads", GROUPS | {"group": 1, "stages": 4}),
        ("a norm of a tail", WIDER),
        ("norms of heads of which the last tile has one", GROUPS | {"tile_n": 32, "warp_n": 32}),
        ("log-softmax at a temperature", {"tile_m": 16, "tile_n": 48, "warp_n": 48}),
        ("softmax", {"aligned": 1}),
        ("softmax", {"tile_m": 64, "tile_n": 128, "warp_m": 32, "run": 0}),
        ("a norm of a tail", {"depth": 64, "warps_k": 2, "stages": 2}),
    ],
)  # fmt: skip
def test_other_ways_to_multiply_give_the_same(
    name: str, change: dict[str, Parameter], tmp_path: Path
) -> None:
    check(CASES[name], tmp_path, **change)


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        (130, WIDER),
        (136, WIDER | {"run": 64}),
        (150, WIDER | {"tile_m": 64, "tile_n": 160, "warp_n": 160}),
        (189, WIDER | {"tile_m": 64, "tile_n": 192, "warp_n": 192}),
        (130, {"tile_m": 64, "tile_n": 144, "warp_m": 32, "warp_n": 72}),
        (250, {"tile_n": 256, "warp_n": 64}),
    ],
)
def test_rows_of_many_columns(columns: int, change: dict[str, Parameter], tmp_path: Path) -> None:
    inputs = (randn(140, 68), randn(columns, 68), randn(columns))
    check((classes, inputs), tmp_path, **change)


@pytest.mark.parametrize(
    ("dtype", "change"),
    [(torch.float16, HALF), (torch.float16, HALF_GROUPS), (torch.bfloat16, HALF)],
)
def test_operands_of_16_bits(
    dtype: torch.dtype, change: dict[str, Parameter], tmp_path: Path
) -> None:
    check((classes, (X.to(dtype), W.to(dtype), B.to(dtype))), tmp_path, **change)


@pytest.mark.parametrize("shape", [(64, 64, 3), (128, 128, 4)])
def test_boxes_of_16_bits(shape: tuple[int, int, int], tmp_path: Path) -> None:
    tile_m, tile_n, stages = shape
    inputs = (randn(150, 128), randn(128, 192), randn(32))
    change: dict[str, Parameter] = {
        **HALF_GROUPS, "tile_m": tile_m, "tile_n": tile_n, "warp_n": tile_n, "stages": stages, "group": 4,
    }  # fmt: skip
    check((heads, tuple(x.to(torch.bfloat16) for x in inputs)), tmp_path, **change)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "name", ["log-softmax at a temperature", "a norm of a tail", "norms of heads", "length 1"]
)
def test_what_is_not_finite_is_as_in_eager(name: str, special: float, tmp_path: Path) -> None:
    function, (x, w, *rest) = CASES[name]
    x, w = x.clone(), w.clone()
    x[5, 6], w[3, 2] = special, special
    it = made(function, x, w, *rest)
    (got,) = cuda_emulator.run(*in_tiles(it), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("special", [-math.inf, 3e38])
def test_a_bias_reaches_all_rows(special: float, tmp_path: Path) -> None:
    bias = B.clone()
    bias[7] = special
    it = made(classes, X, W, bias)
    (got,) = cuda_emulator.run(*in_tiles(it), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-4, atol=1e-4)


def over_two(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).view(len(x), 4, -1).softmax(1)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: torch.logsumexp(x @ w, 1), (X, randn(70, 40))),
        (lambda x, w: (x @ w).relu(), (X, randn(70, 40))),
        (lambda x, w: (x @ w).softmax(0), (X, randn(70, 40))),
        (lambda x, w: (x @ w).cumsum(1), (X, randn(70, 40))),
        (lambda x, w: (x @ w).softmax(1), (X, randn(70, 300))),
        (lambda x, w: (x @ w)[:, 1:].softmax(1), (X, randn(70, 40))),
        (over_two, (X, randn(70, 40))),
    ],
)
def test_what_else_becomes_of_a_product_is_left_to_others(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = made(function, *inputs)
    region, kernels = it.analysis.region, it.analysis.kernels
    for number in range(len(kernels)):
        with pytest.raises(Unsupported):
            match_rows(region, kernels, number)
    offered = cuda.schedules(region, kernels, DEVICE)
    assert all(dict(k)["sketch"] != SKETCH for s in offered for k in s.kernels)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("softmax", {"split": 2}, "split"),
        ("softmax", {"banded": 1}, "left out"),
        ("softmax", {"tile_n": 32}, "longer than a tile"),
        ("norms of heads", {"tile_n": 48, "warp_n": 48}, "across its end"),
        ("softmax", GROUPS | {"tile_n": 136, "warp_n": 136, "group": 1}, "warp groups"),
        ("softmax", GROUPS | {"tile_n": 160, "warp_n": 160}, "warp groups"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(
    name: str, change: dict[str, Parameter], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        in_tiles(case(name), **change)


@pytest.mark.parametrize(
    ("rows", "columns", "first"), [(20000, 130, True), (40, 130, False), (20000, 250, False)]
)
def test_both_ways_are_offered(rows: int, columns: int, first: bool) -> None:
    """First what is likelier: where terms are shared, or only slower tiles are as wide, rows come second."""
    it = made(classes, torch.empty(rows, 620), torch.empty(columns, 620), torch.empty(columns))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    ways = [s.parameters(0)["sketch"] == SKETCH for s in offered]
    assert ways[:2] == [first, not first]
    for schedule in offered:
        cuda.emit(region, kernels, schedule, DEVICE)


def and_columns(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = classes(x, w, b)
    return y, y.amax(0)


def test_what_reads_the_rows_is_a_kernel_behind(tmp_path: Path) -> None:
    it = made(and_columns, X, W, B)
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = [
        s for s in cuda.schedules(region, kernels, DEVICE) if dict(s.kernels[0])["sketch"] == SKETCH
    ]
    source, plan = cuda.emit(region, kernels, offered[0], DEVICE)
    assert [len(s.kernels) for s in offered] == [len(kernels) - 1] * len(offered)
    for got, want in zip(
        cuda_emulator.run(source, plan, it.inputs, tmp_path), it.want, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [130, 192])
def test_the_first_schedule_compiles_without_spilling_registers(
    dtype: torch.dtype, columns: int, tmp_path: Path
) -> None:
    inputs = (torch.empty(50_000, 620), torch.empty(columns, 620), torch.empty(columns))
    it = made(classes, *(x.to(dtype) for x in inputs))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)[:2]
    (schedule,) = (s for s in offered if s.parameters(0)["sketch"] == SKETCH)
    candidate = Candidate("cuda", "cuda", *cuda.emit(region, kernels, schedule, DEVICE), "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
