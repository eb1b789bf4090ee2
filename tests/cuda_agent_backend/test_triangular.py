"""Products whose operands are zero beside a band: terms are left out, and nothing else changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, sample
from torch import Tensor

from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.banded import (
    BandedOperands,
    banded_operands_of,
    needed_of,
)
from cuda_agent_backend.codegen.cuda.gemm.tiles import read_tiles
from cuda_agent_backend.codegen.cuda.gemm.writer import GemmWriter
from cuda_agent_backend.codegen.ir.banded import Band
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule

DEVICE = cuda.DeviceFacts()
WARPS = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "split": 1}  # fmt: skip
GROUP = WARPS | {"group": 1, "tile_m": 64, "tile_n": 64, "depth": 32, "stages": 4, "run": 32}
REGISTERS = GROUP | {"group": 2, "stages": 5}
HALF = WARPS | {"run": 0, "products": 1}
SHARED = HALF | {"group": 3, "tile_m": 64, "tile_n": 64, "depth": 64}
BOXES = SHARED | {"group": 4}


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def with_ones(x: Tensor) -> Tensor:
    lower = torch.tril(x, -1) + torch.eye(x.shape[0], dtype=x.dtype)
    return lower @ lower.T


def times_mask(x: Tensor, y: Tensor) -> Tensor:
    return (x * torch.tril(torch.ones(x.shape, dtype=x.dtype))) @ y


def filled(x: Tensor, y: Tensor) -> Tensor:
    return x.masked_fill(torch.ones(x.shape, dtype=torch.bool).triu(1), 0) @ y


# odd sizes, several tiles by rows and columns, and operands that are no square
CASES: dict[str, Case] = {
    "lower": (lambda a, b: torch.tril(a) @ b, (randn(147, 147), randn(147, 70))),
    "lower, whole tiles": (lambda a, b: torch.tril(a) @ b, (randn(128, 128), randn(128, 64))),
    "lower, more terms than rows": (lambda a, b: torch.tril(a, 3) @ b, (randn(99, 180), randn(180, 66))),
    "lower, fewer terms than rows": (lambda a, b: torch.tril(a, -40) @ b, (randn(180, 99), randn(99, 66))),
    "upper, with a tail": (lambda a, b: torch.relu(torch.triu(a, 1) @ b), (randn(147, 147), randn(147, 70))),
    "batches": (lambda a, b: torch.bmm(torch.triu(a), b), (randn(3, 100, 100), randn(3, 100, 44))),
    "on the right": (lambda a, b: a @ torch.tril(b), (randn(70, 147), randn(147, 147))),
    "transposed": (lambda a, b: torch.tril(a).T @ b, (randn(147, 147), randn(147, 70))),
    "two lower ones": (lambda a, b: torch.tril(a) @ torch.tril(b), (randn(147, 147), randn(147, 147))),
    "two lower ones, whole tiles": (
        lambda a, b: torch.tril(a) @ torch.tril(b).mT, (randn(128, 128), randn(128, 128)),
    ),
    "a factor and its transpose": (with_ones, (randn(147, 147),)),
    "a band": (lambda a, b: torch.triu(torch.tril(a, 20), -9) @ b, (randn(147, 147), randn(147, 70))),
    "times a mask": (times_mask, (randn(147, 147), randn(147, 70))),
    "filled": (filled, (randn(147, 147), randn(147, 70))),
}  # fmt: skip


def on_cuda(function: Callable[..., Any], *inputs: Tensor) -> Sample:
    """As `sample`, of functions that make constants, which are on the cpu here."""
    it = sample(function, *inputs)
    return replace(it, task=replace(it.task, target="cuda"))


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return on_cuda(function, *inputs)


def bands(it: Sample) -> BandedOperands | None:
    found = gemm_of(it.analysis.kernels[-1])
    assert found is not None
    return banded_operands_of(found, it.analysis.region)


def with_tiles(it: Sample, **tiles: Any) -> Schedule:
    best = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    before = [best.parameters(n) for n in range(len(best.kernels) - 1)]
    return Schedule.of(*before, {"banded": 1, **tiles})


def emulated(it: Sample, folder: Path, **tiles: Any) -> Tensor:
    schedule = with_tiles(it, **tiles)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, folder)
    return got


@pytest.mark.parametrize(
    "tiles", [WARPS, {**WARPS, "split": 3}, GROUP, REGISTERS, {**GROUP, "split": 2}]
)
@pytest.mark.parametrize("name", CASES)
def test_sums_without_their_zeros_are_as_accurate_as_eagers(
    name: str, tiles: dict[str, Any], tmp_path: Path
) -> None:
    assert_accurate(name, tiles, tmp_path)


@pytest.mark.parametrize("tiles", [WARPS, GROUP])
@pytest.mark.parametrize("name", ["lower", "on the right", "a band"])
def test_operands_that_are_aligned_first_leave_out_terms_as_well(
    name: str, tiles: dict[str, Any], tmp_path: Path
) -> None:
    assert_accurate(name, {**tiles, "aligned": 1}, tmp_path)


def assert_accurate(name: str, tiles: dict[str, Any], folder: Path) -> None:
    it, (function, inputs) = case(name), CASES[name]
    want = function(*(x.double() for x in inputs))
    got = emulated(it, folder, **tiles)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        *itertools.product(
            ("lower, whole tiles", "two lower ones, whole tiles"),
            (HALF, {**HALF, "split": 2}, SHARED, BOXES),
        ),
        *itertools.product(("upper, with a tail", "batches"), (HALF, SHARED)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_operands_leave_out_terms_as_well(
    name: str, dtype: torch.dtype, tiles: dict[str, Any], tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    inputs = tuple(x.to(dtype) for x in inputs)
    it = on_cuda(function, *inputs)
    want = function(*(x.double() for x in inputs))
    got = emulated(it, tmp_path, **tiles)
    assert relative(got, want) < 1.1 * relative(it.want[0], want) + 1e-5


@pytest.mark.parametrize("tiles", [WARPS, {**WARPS, "split": 2}, GROUP])
def test_blocks_add_no_terms_beside_the_band(tiles: dict[str, Any], tmp_path: Path) -> None:
    """A band narrower than the operand's own shows which terms are left out."""
    it = on_cuda(lambda a, b: torch.tril(a) @ b, torch.ones(192, 192), torch.ones(192, 64))
    found = it.analysis
    buffers = found.region.buffers
    (name,) = (n for n, b in buffers.items() if b.band is not None)
    narrow = replace(buffers[name], band=Band(high=-64))
    region = replace(found.region, buffers={**buffers, name: narrow})
    source, plan = cuda.emit(region, found.kernels, with_tiles(it, **tiles), DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    rows, tile = torch.arange(192), int(tiles["tile_m"])
    terms = (rows // tile * tile + tile - 64).clamp(min=0)
    assert torch.equal(got[:, 0], torch.minimum(rows + 1, terms).float())


@pytest.mark.parametrize(
    ("tiles", "special"),
    [
        (WARPS, math.inf),
        ({**WARPS, "split": 2}, math.nan),
        (GROUP, math.inf),
        (HALF, math.nan),
        (SHARED, math.inf),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_counts_where_terms_are_left_out(
    name: str, tiles: dict[str, Any], special: float, tmp_path: Path
) -> None:
    """In the last of some lines and in the first of others, of each operand."""
    function, inputs = CASES[name]
    dtype = torch.bfloat16 if tiles.get("products") == 1 else torch.float32
    inputs = tuple(x.to(dtype, copy=True) for x in inputs)
    for x in inputs:
        x[..., -1, 5] = x[..., 2, -1] = special
    it = on_cuda(function, *inputs)
    got = emulated(it, tmp_path, **tiles)
    close = 2e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=close, atol=10 * close)
    assert got.isnan().any() and got.isfinite().any()


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("lower", Band(high=0), Band()),
        ("lower, more terms than rows", Band(high=3), Band()),
        ("upper, with a tail", Band(low=1), Band()),
        ("batches", Band(low=0), Band()),
        ("on the right", Band(), Band(low=0)),
        ("transposed", Band(low=0), Band()),
        ("two lower ones", Band(high=0), Band(low=0)),
        ("two lower ones, whole tiles", Band(high=0), Band(high=0)),
        ("a factor and its transpose", Band(high=0), Band(high=0)),
        ("a band", Band(-9, 20), Band()),
        ("times a mask", Band(high=0, sure=False), Band()),
        ("filled", Band(high=0), Band()),
    ],
)
def test_bands_are_known_by_rows_and_terms(name: str, left: Band, right: Band) -> None:
    found = bands(case(name))
    assert found is not None and (found.left, found.right) == (left, right)


def every_other(x: Tensor, y: Tensor) -> Tensor:
    place = torch.arange(x.shape[1])
    return torch.where(place[None] % 2 < place[:, None] % 3, x, 0) @ y


def rows_of_several_matrices(x: Tensor, y: Tensor) -> Tensor:
    return torch.tril(x.view(3, 49, 147)).view(147, 147) @ y


def nothing_kept(x: Tensor, y: Tensor) -> Tensor:
    return torch.tril(x, -(10**10)) @ y


def all_kept(x: Tensor, y: Tensor) -> Tensor:
    return torch.tril(x, 10**10) @ y


@pytest.mark.parametrize(
    "function", [nothing_kept, all_kept, every_other, rows_of_several_matrices, torch.mm]
)
def test_no_band_is_seen_where_there_is_none(function: Callable[..., Any], tmp_path: Path) -> None:
    it = on_cuda(function, randn(147, 147), randn(147, 70))
    assert bands(it) is None
    with pytest.raises(Unsupported, match="no terms to leave out"):
        emulated(it, tmp_path, **WARPS)


def test_a_tile_has_the_terms_at_which_both_operands_may_differ_from_zero() -> None:
    lower, upper = Band(high=0), Band(low=0)
    assert BandedOperands(lower, Band(), 100, 100, 100).terms(32, 0, 32, 32, 16) == (0, 64)
    assert BandedOperands(upper, Band(), 100, 100, 100).terms(40, 0, 32, 32, 16) == (32, 100)
    assert BandedOperands(lower, upper, 100, 100, 100).terms(64, 32, 32, 32, 16) == (32, 96)
    first, end = BandedOperands(lower, upper, 100, 100, 100).terms(0, 64, 32, 32, 16)
    assert end <= first  # above the diagonal of a product of two lower triangles
    assert BandedOperands(lower, lower, 64, 64, 64).share(32, 32, 32) == (3 * 32 + 64) / (4 * 64)


def test_leaving_terms_out_is_tried_first_where_it_pays() -> None:
    def first(*shape: int) -> list[int]:
        it = on_cuda(
            lambda a, b: torch.tril(a) @ b, torch.empty(shape[0], shape[1]), torch.empty(*shape[1:])
        )
        found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
        return [
            int(s.parameters(1).get("banded", 0))
            for s in found
            if s.parameters(0) == found[0].parameters(0)
        ]

    assert first(2000, 2000, 1000)[:3] == [1, 0, 1]
    assert set(first(140, 140, 130)) == {0}


def causal_scores(q: Tensor, k: Tensor) -> Tensor:
    past = torch.arange(q.shape[0])[:, None] >= torch.arange(k.shape[0])
    return torch.where(past, q @ k.T * 0.5, -math.inf)


def and_a_bias(x: Tensor, y: Tensor) -> Tensor:
    return torch.tril(torch.relu(x @ y), -1) + 1


def of_three(x: Tensor, y: Tensor) -> Tensor:
    return torch.tril(torch.tril(x) @ torch.tril(y))


def times_mask_after(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y) * torch.tril(torch.ones(x.shape[0], y.shape[1], dtype=x.dtype))


RESULTS: dict[str, tuple[Case, Band]] = {
    "scores": ((causal_scores, (randn(136, 72), randn(136, 72))), Band(high=0)),
    "odd": ((and_a_bias, (randn(147, 70), randn(70, 147))), Band(high=-1)),
    "of triangles": ((of_three, (randn(136, 136), randn(136, 136))), Band(high=0)),
    "batches": ((lambda a, b: torch.triu(torch.bmm(a, b)), (randn(2, 100, 40), randn(2, 40, 100))), Band(low=0)),
    "times a mask": ((times_mask_after, (randn(136, 72), randn(72, 136))), Band()),
}  # fmt: skip


@pytest.mark.parametrize(
    "tiles", [WARPS, {**WARPS, "split": 2}, GROUP, REGISTERS, HALF, SHARED, BOXES]
)
@pytest.mark.parametrize("name", ["scores", "of triangles"])
def test_tiles_of_which_nothing_is_stored_have_no_terms(
    name: str, tiles: dict[str, Any], tmp_path: Path
) -> None:
    assert_masked_results(name, tiles, tmp_path)


@pytest.mark.parametrize("tiles", [WARPS, GROUP])
@pytest.mark.parametrize("name", ["odd", "batches", "times a mask"])
def test_masked_results_of_other_shapes_are_as_eagers(
    name: str, tiles: dict[str, Any], tmp_path: Path
) -> None:
    assert_masked_results(name, tiles, tmp_path)


def assert_masked_results(name: str, tiles: dict[str, Any], folder: Path) -> None:
    """With an infinity in a line of each operand, which masks hide and products by zero do not."""
    (function, inputs), _ = RESULTS[name]
    dtype = torch.bfloat16 if tiles.get("products") == 1 else torch.float32
    inputs = tuple(x.to(dtype, copy=True) for x in inputs)
    for x in inputs:
        x[..., 2, -1] = x[..., -1, 5] = math.inf
    it = on_cuda(function, *inputs)
    got = emulated(it, folder, **tiles, **({} if name == "of triangles" else {"banded": 0}))
    close = 2e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=close, atol=10 * close)


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_stored_depends_on_sums_within_a_band_only(name: str) -> None:
    (function, inputs), band = RESULTS[name]
    it = on_cuda(function, *inputs)
    kernel, region = it.analysis.kernels[-1], it.analysis.region
    found = gemm_of(kernel)
    assert found is not None
    assert needed_of(kernel, found) == band
    writer = GemmWriter(kernel, found, region, read_tiles(WARPS), "k", DEVICE)
    assert (writer.share < 1) is band.bounds
    assert (" : first;" in writer.emit().functions[0]) is band.bounds
