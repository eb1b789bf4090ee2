"""Products whose parts are combined in their tiles on cuda: recognised, and right, as an emulator on the CPU runs
them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, on_cuda
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.dual_gemm import match_glu_or_dual_gemm
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.writer import SKETCH, glu_writer
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
SHARED: dict[str, Parameter] = {**GROUPS, "stages": 4, "group": 1}
WIDE: dict[str, Parameter] = {**GROUPS, "tile_n": 128, "warp_n": 128}
HALF: dict[str, Parameter] = {"products": 1, "run": 0, "depth": 32}
HALF_GROUPS: dict[str, Parameter] = {**GROUPS, **HALF, "depth": 64, "stages": 4, "group": 3}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def wave(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    value, gate = F.conv1d(F.pad(x, (4, 0)), w, b, dilation=2).chunk(2, dim=1)
    return torch.tanh(value) * torch.sigmoid(gate)


def swish(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    value, gate = F.linear(x, w, b).chunk(2, dim=-1)
    return F.silu(gate) * value


def cell(x: Tensor, w: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = torch.addmm(b, x, w).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def thirds(x: Tensor, w: Tensor) -> Tensor:
    a, b, c = F.linear(x, w).chunk(3, dim=-1)
    return (a.sigmoid() * b - c).tanh()


def normed(x: Tensor, w: Tensor, s: Tensor, r: Tensor) -> Tensor:
    y = F.conv2d(x, w, stride=2, padding=1) * s[:, None, None]
    return F.glu(y.relu(), 1) + r


def two(x: Tensor, g: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, g)) * F.linear(x, v)


def two_with_biases(x: Tensor, g: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, g, a)) * (F.linear(x, v, b) + 1)


def two_and_a_residual(x: Tensor, g: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    gate = (x @ g + r).sigmoid()
    mixed = gate * (x @ v) + (1 - gate) * r
    return mixed, mixed.tanh()


def wave_of_two(x: Tensor, w: Tensor, v: Tensor, b: Tensor) -> Tensor:
    x = F.pad(x, (4, 0))
    return F.conv1d(x, w, b, dilation=2).tanh() * F.conv1d(x, v, dilation=2).sigmoid()


def two_of_an_image(x: Tensor, w: Tensor, v: Tensor, r: Tensor) -> Tensor:
    first, second = (F.conv2d(x, one, stride=2, padding=1) for one in (w, v))
    return F.elu(first) * second.sigmoid() + r


# odd sizes; rows and columns that are no multiple of a tile
X, W, B = randn(3, 10, 33), randn(36, 10), randn(36)
IMAGE, FILTERS = randn(2, 7, 11, 9), randn(20, 7, 3, 3)
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "tanh times sigmoid of a causal convolution": (wave, (X, randn(22, 10, 3), randn(22))),
    "halves of a linear layer": (swish, (randn(2, 21, 10), W, B)),
    "halves of an odd size": (swish, (randn(37, 10), W[:30], B[:30])),
    "weights that lie by terms": (lambda x, w: F.glu(x @ w), (randn(37, 11), randn(11, 48))),
    "GLU of channels": (lambda x, w: F.glu(F.conv2d(x, w, padding=1), 1), (IMAGE, FILTERS)),
    "GLU of channels last": (
        lambda x, w: F.glu(F.conv2d(x, w, padding=1), 1), (channels_last(IMAGE), channels_last(FILTERS)),
    ),
    "a tail before and behind": (normed, (IMAGE, FILTERS, randn(20), randn(2, 10, 6, 5))),
    "three parts": (thirds, (randn(37, 10), W)),
    "a recurrent cell": (cell, (randn(13, 10), randn(10, 72), randn(72), randn(13, 18))),
    "halves of rows": (lambda w, x: F.glu(w @ x, 0), (randn(48, 11), randn(11, 35))),
    "batches": (lambda x, w: F.glu(x @ w), (randn(3, 19, 12), randn(3, 12, 16))),
    "halves of a batch's rows": (lambda x, w: F.glu(x @ w, 1), (randn(3, 18, 12), randn(3, 12, 17))),
    "heads that lie inside": (
        lambda x, w: F.glu(x @ w).view(2, 9, 4, 6).transpose(1, 2).exp(), (randn(18, 10), randn(10, 48)),
    ),
    "tokens of an image": (
        lambda x, w: F.glu(F.conv2d(x, w), 1).flatten(2).transpose(1, 2).contiguous(), (IMAGE, FILTERS),
    ),
    "halves of an image's rows": (
        lambda x, w: F.glu(F.conv2d(x, w, padding=1), 2), (randn(2, 7, 12, 9), FILTERS),
    ),
    "two layers of one input": (two, (randn(2, 21, 10), W, randn(36, 10) + W.flip(0))),
    "two layers with biases": (
        two_with_biases, (randn(37, 10), W[:30], W[6:] * 2, B[:30], B[6:]),
    ),
    "two products of an odd number of columns": (
        two_and_a_residual, (randn(37, 11), randn(11, 33), randn(11, 33).flip(0), randn(37, 33)),
    ),
    "two causal convolutions": (
        wave_of_two, (X, randn(22, 10, 3), randn(22, 10, 3).flip(0), randn(22)),
    ),
    "two convolutions of an image": (
        two_of_an_image, (IMAGE, FILTERS, FILTERS.flip(0), randn(2, 20, 6, 5)),
    ),
    "two convolutions in channels last": (
        two_of_an_image, tuple(map(channels_last, (IMAGE, FILTERS, FILTERS.flip(0), randn(2, 20, 6, 5)))),
    ),
    "two products in batches": (
        lambda x, w, v: F.silu(x @ w) * (x @ v), (randn(3, 19, 12), randn(3, 12, 16), randn(3, 12, 16).flip(0)),
    ),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return on_cuda(function, *inputs)


def gated(it: Sample, device: cuda.DeviceFacts = DEVICE, **change: Parameter) -> tuple[str, Any]:
    """Source and plan of the only product that there is in such tiles."""
    schedule = Schedule.of(TILES | change)
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, device)


def check(
    function: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    folder: Path,
    device: cuda.DeviceFacts = DEVICE,
    **change: Parameter,
) -> None:
    """Results are as near to those in float64 as eager's."""
    it, exactly = on_cuda(function, *inputs), on_cuda(function, *(x.double() for x in inputs))
    source, plan = gated(it, device, **change)
    for mine, theirs, exact in zip(
        cuda_emulator.run(source, plan, it.inputs, folder), it.want, exactly.want, strict=True
    ):
        assert mine.shape == theirs.shape
        assert relative(mine, exact) < 2 * relative(theirs, exact) + 1e-7


@pytest.mark.parametrize("name", CASES)
def test_combined_parts_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    check(*CASES[name], tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_what_is_combined_is_never_written(name: str) -> None:
    it = case(name)
    _, plan = gated(it)
    assert len(plan.steps) == 1
    assert {b.kind for b in plan.buffers} == {"input", "output"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tanh times sigmoid of a causal convolution", GROUPS),
        ("weights that lie by terms", SHARED),
        ("halves of a linear layer", WIDE),
        ("a recurrent cell", GROUPS),
        ("three parts", GROUPS),
        ("weights that lie by terms", {"aligned": 1}),
        ("halves of a linear layer", {"aligned": 1}),
        ("halves of a linear layer", {"split": 2, "depth": 16}),
        ("tanh times sigmoid of a causal convolution", {"split": 2}),
        ("batches", {"split": 2}),
        ("GLU of channels last", {"split": 3}),
        ("a recurrent cell", {"split": 2}),
        ("two layers of one input", GROUPS),
        ("two layers of one input", SHARED),
        ("halves of an image's rows", GROUPS),
        ("halves of an image's rows", SHARED),
        ("two layers with biases", {"split": 2}),
        ("two products of an odd number of columns", WIDE),
        ("two products of an odd number of columns", {"aligned": 1}),
        ("two causal convolutions", GROUPS),
        ("two convolutions of an image", {"split": 2}),
        ("GLU of channels", {"warp_n": 32, "tile_n": 64, "depth": 64, "warps_k": 2, "stages": 2}),
    ],
)  # fmt: skip
def test_other_ways_to_multiply_combine_the_same(
    name: str, change: dict[str, Parameter], tmp_path: Path
) -> None:
    check(*CASES[name], tmp_path, **change)


@pytest.mark.parametrize(
    ("name", "multiprocessors"),
    [
        ("tanh times sigmoid of a causal convolution", 3),
        ("halves of a linear layer", 3),
        ("three parts", 3),
        ("batches", 2),
    ],
)
def test_blocks_that_share_a_last_wave_combine_the_same(
    name: str, multiprocessors: int, tmp_path: Path
) -> None:
    device = replace(DEVICE, sm_count=multiprocessors)
    function, (x, w, *more) = CASES[name]
    longer = torch.cat([x] * 8, 1 if name.startswith("tanh") else -1)
    weights = torch.cat([w] * 8, -2 if name == "batches" else 1 if name.startswith("tanh") else -1)
    check(function, (longer, weights, *more), tmp_path, device, last_wave=2)


@pytest.mark.parametrize(
    ("dtype", "change"),
    [(torch.float16, HALF), (torch.float16, HALF_GROUPS), (torch.bfloat16, HALF)],
)
def test_operands_of_16_bits(
    dtype: torch.dtype, change: dict[str, Parameter], tmp_path: Path
) -> None:
    function, inputs = CASES["halves of a linear layer"]
    check(function, tuple(x.to(dtype) for x in inputs), tmp_path, **change)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tanh times sigmoid of a causal convolution", {}),
        ("halves of a linear layer", {"split": 2}),
        ("tokens of an image", GROUPS),
        ("two layers of one input", {}),
        ("two causal convolutions", {}),
    ],
)
def test_what_is_not_finite_is_as_in_eager(
    name: str, change: dict[str, Parameter], special: float, tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    x, w, *more = (x.clone() for x in inputs)
    x[0, 0, 5], x[1, 2, 3], w[3, 2] = special, 0, special
    if more:
        more[0][..., -1] = special
    it = on_cuda(function, x, w, *more)
    (got,) = cuda_emulator.run(*gated(it, **change), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-4, atol=1e-4)


def kept(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.glu(y)


def different(x: Tensor, y: Tensor, g: Tensor, v: Tensor) -> Tensor:
    return (x @ g).sigmoid() * (y @ v)


def first_kept(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ g
    return y.sigmoid() * (x @ v), y


def turned(x: Tensor, g: Tensor, v: Tensor) -> Tensor:
    return (x @ g).sigmoid() * F.linear(x, v)


def padded_apart(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (2, 0)), w) * F.conv1d(F.pad(x, (1, 1)), v).sigmoid()


def two_crossed(x: Tensor, g: Tensor, v: Tensor) -> Tensor:
    return (x @ g).flip(1) * (x @ v)


def neighbours(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return y[:, ::2].sigmoid() * y[:, 1::2]


def unequal(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return y[:, :20].sum(1, keepdim=True) * y[:, 20:]


def two_thirds(x: Tensor, w: Tensor) -> Tensor:
    a, b, _ = F.linear(x, w).chunk(3, dim=-1)
    return a * b


def crossed(x: Tensor, w: Tensor) -> Tensor:
    a, b = (x @ w).chunk(2, dim=1)
    return a * b.flip(1)


def five(x: Tensor, w: Tensor) -> Tensor:
    a, b, c, d, e = (x @ w).chunk(5, dim=1)
    return a * b + c * d + e


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (kept, (randn(37, 10), W, B)),
        (two_thirds, (randn(37, 10), W)),
        (unequal, (randn(37, 11), randn(11, 48))),
        (crossed, (randn(37, 11), randn(11, 48))),
        (neighbours, (randn(37, 11), randn(11, 48))),
        (different, (randn(37, 11), randn(37, 11) + 1, randn(11, 24), randn(11, 24) + 1)),
        (first_kept, (randn(37, 11), randn(11, 24), randn(11, 24) + 1)),
        (turned, (randn(37, 11), randn(11, 24), randn(24, 11))),
        (two_crossed, (randn(37, 11), randn(11, 24), randn(11, 24) + 1)),
        (padded_apart, (X, randn(22, 10, 3), randn(22, 10, 3) + 1)),
        (five, (randn(37, 11), randn(11, 60))),
        (lambda x, w: (x @ w).chunk(2, 1)[0].relu(), (randn(37, 11), randn(11, 48))),
        (lambda x, w: F.glu(F.conv2d(x, w, groups=2), 1), (randn(2, 14, 11, 9), FILTERS)),
        (lambda x, w: F.glu(x @ w).sum(1), (randn(37, 11), randn(11, 48))),
        (lambda x, w: F.glu(F.conv_transpose2d(x, w, stride=2), 1), (IMAGE, randn(7, 20, 3, 3))),
        (lambda x, w: (x @ w).relu(), (randn(37, 11), randn(11, 48))),
    ],
)
def test_what_else_becomes_of_parts_is_left_to_others(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = on_cuda(function, *inputs)
    region, kernels = it.analysis.region, it.analysis.kernels
    for number in range(len(kernels)):
        with pytest.raises(Unsupported):
            match_glu_or_dual_gemm(region, kernels, number)
    offered = cuda.schedules(region, kernels, DEVICE)
    assert all(dict(k)["sketch"] != SKETCH for s in offered for k in s.kernels)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("halves of a linear layer", {"banded": 1}, "left out"),
        ("three parts", {"tile_n": 8, "warp_n": 8}, "a column each"),
        ("three parts", {"split": 2}, "in vain"),
    ],
)
def test_tiles_that_cannot_combine_parts_are_refused(
    name: str, change: dict[str, Parameter], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        gated(case(name), **change)


def test_the_schedule_has_no_kernel_for_the_gate() -> None:
    it = case("halves of a linear layer")
    schedule = Schedule.of(TILES, {"sketch": "map", "vector": 1})
    with pytest.raises(Unsupported, match="2 kernels where there are 1"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.parametrize(("rows", "first"), [(8192, True), (64, False)])
def test_both_ways_are_offered(rows: int, first: bool) -> None:
    it = on_cuda(swish, torch.empty(rows, 512), torch.empty(1024, 512), torch.empty(1024))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    ways = [s.parameters(0)["sketch"] == SKETCH for s in offered]
    assert ways[:2] == [first, not first]
    for schedule in offered:
        cuda.emit(region, kernels, schedule, DEVICE)


@pytest.mark.parametrize(
    ("left", "first", "second", "together"),
    [
        (1.0, 0.5, 1.0, False),
        (1.0, 1.0, 0.25, False),
        (1.0, -0.5, -0.5, True),
        (0.5, 1.0, 1.0, True),
        (1.0, 2.0, 1.0, True),
        (1.0, 2.0, 3.0, True),
    ],
)
def test_constants_of_two_layers_are_kept(
    left: float, first: float, second: float, together: bool, tmp_path: Path
) -> None:
    def scaled(x: Tensor, g: Tensor, v: Tensor) -> Tensor:
        x = x * left
        return (x @ (g * first)).sigmoid() * (x @ (v * second))

    it = on_cuda(scaled, randn(37, 11), randn(11, 32), randn(11, 32).flip(0) + 1)
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    ways = {tuple(dict(k)["sketch"] for k in s.kernels) for s in offered}
    assert ((SKETCH,) in ways) == together and ("contract", "contract") in ways
    wide = scaled(*(x.double() for x in it.inputs))
    for number, way in enumerate(ways):
        schedule = next(s for s in offered if tuple(dict(k)["sketch"] for k in s.kernels) == way)
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
        folder = tmp_path / str(number)
        folder.mkdir()
        (got,) = cuda_emulator.run(source, plan, it.inputs, folder)
        torch.testing.assert_close(got.double(), wide, rtol=1e-5, atol=1e-5)


def test_two_convolutions_are_tried_alike_in_both_ways() -> None:
    """One kernel for both, and boxes of the image, which that does not have, in the first round of a search."""
    inputs = (torch.empty(16, 64, 8000), *(torch.empty(64, 64, 2) for _ in range(2)))
    it = on_cuda(lambda x, w, v: F.conv1d(x, w).tanh() * F.conv1d(x, v).sigmoid(), *inputs)
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    ways = [tuple(str(dict(k)["sketch"]) for k in s.kernels) for s in offered]
    assert {(SKETCH,), ("halo", "halo")} <= set(ways[:4])
    assert all(len(set(way)) == 1 for way in ways)


def test_two_layers_of_codes_are_two_products() -> None:
    def coded(x: Tensor, g: Tensor, v: Tensor, s: Tensor) -> Tensor:
        return (x @ (g.float() * s)).sigmoid() * (x @ (v.float() * s))

    codes = torch.arange(11 * 32).remainder(200).sub(100).to(torch.int8).view(11, 32)
    it = on_cuda(coded, randn(37, 11), codes, codes.flip(0), randn(32))
    for schedule in cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE):
        assert [dict(k)["sketch"] for k in schedule.kernels] == ["contract", "contract"]


def test_columns_that_a_tile_has_in_vain_are_counted_and_not_stored() -> None:
    # three parts of 4 columns each, twice in a tile of 32
    it = case("three parts")
    gating = match_glu_or_dual_gemm(it.analysis.region, it.analysis.kernels, 0)
    assert glu_writer(gating, read_tiles(TILES), DEVICE).share == 32 / 24
    source, _ = gated(it)
    assert "column0 = tile_n * 24;" in source
    assert "if (!(row < 37 && column < 36))" in source


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_first_schedule_compiles_without_spilling_registers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    inputs = (torch.empty(8192, 512), torch.empty(1024, 512), torch.empty(1024))
    it = on_cuda(swish, *(x.to(dtype) for x in inputs))
    region, kernels = it.analysis.region, it.analysis.kernels
    offered = cuda.schedules(region, kernels, DEVICE)
    schedule = next(s for s in offered if s.parameters(0)["sketch"] == SKETCH)
    candidate = Candidate("cuda", "cuda", *cuda.emit(region, kernels, schedule, DEVICE), "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
