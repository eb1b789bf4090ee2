"""Tiles of a product's last wave that blocks share: as accurate, kept apart from the others, offered where it pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import test_contraction
import test_triangular
import torch
from sketch_kit import Sample, sample
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.nn import functional as F

from cuda_agent_backend.sketch import cuda
from cuda_agent_backend.sketch.cuda_contract_schedules import TILES as WARP_TILES
from cuda_agent_backend.sketch.cuda_tiles import Tiles
from cuda_agent_backend.sketch.last_wave import LastWave, best_last_wave, last_wave_of
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.candidate import Candidate
from sandbox.compilation import Compiled
from sandbox.compile import compile_candidate
from sandbox.plan import Launch
from sandbox.toolchain import Missing, find_cuda

DEVICE = cuda.DeviceFacts()
THREE = cuda.DeviceFacts(sm_count=3)
WARPS = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "last_wave": 2}  # fmt: skip
GROUPS = {**WARPS, "tile_m": 64, "group": 1, "depth": 32, "stages": 4, "run": 32}
REGISTERS = {**GROUPS, "group": 2, "stages": 5}
HALF_WARPS = {**WARPS, "depth": 32, "products": 1, "run": 0}
BOTH = {**HALF_WARPS, "group": 3, "tile_m": 64, "tile_n": 64, "depth": 64}
BOXES = {**BOTH, "group": 4}

randn = test_contraction.randn
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y.relu(), y + 1


CASES: dict[str, Case] = {
    **test_contraction.CASES,
    "several outputs": (both, (randn(61, 70), randn(70, 50))),
    "tiles of groups": (lambda *a: F.gelu(F.linear(*a)), (randn(131, 200), randn(75, 200), randn(75))),
    "boxes": (lambda *a: F.gelu(F.linear(*a)), (randn(150, 264), randn(136, 264), randn(136))),
    "boxes in batches": (torch.bmm, (randn(3, 136, 264), randn(3, 264, 80))),
    "images": (lambda x, w: F.conv2d(x, w, padding=1), (randn(3, 16, 9, 8), randn(72, 16, 3, 3))),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _plain_layouts() -> Iterator[None]:
    with inductor_config.patch(comprehensive_padding=False):
        yield


def of(function: Callable[..., Any], *inputs: Tensor) -> Sample:
    return sample(function, *inputs, target="cuda")


def schedule(it: Sample, tiles: dict[str, Any], device: cuda.DeviceFacts) -> Schedule:
    rest = cuda.schedules(it.analysis.region, it.analysis.kernels, device)[0]
    others = [rest.parameters(n) for n in range(1, len(rest.kernels))]
    return Schedule.of(tiles, *others)


def emit(it: Sample, tiles: dict[str, Any], device: cuda.DeviceFacts = THREE) -> tuple[str, Any]:
    found = schedule(it, tiles, device)
    return cuda.emit(it.analysis.region, it.analysis.kernels, found, device)


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def check(case: Case, tiles: dict[str, Any], folder: Path, device: cuda.DeviceFacts) -> None:
    """That results are as accurate as eager's, of the terms of the last wave in parts."""
    function, inputs = case
    it = of(function, *inputs)
    results = cuda_emulator.run(*emit(it, tiles, device), it.inputs, folder)
    wide = function(*(x.double() for x in inputs))
    wants = [wide] if isinstance(wide, Tensor) else list(wide)
    for got, eager, want in zip(results, it.want, wants, strict=True):
        assert relative(got, want) < 2 * relative(eager, want) + 1e-7


@pytest.mark.parametrize(
    ("name", "multiprocessors", "change"),
    [
        ("product", 3, {"last_wave": 5}),
        ("several outputs", 3, {"last_wave": 3}),
        ("bias and GELU", 3, {"warps_k": 2, "depth": 32, "last_wave": 3}),
        ("stored by columns", 3, {}),
        ("batches", 4, {"tile_m": 16, "last_wave": 4}),
        ("convolution, bias and ReLU", 4, {"last_wave": 5}),
        ("transposed, stride 2, one more", 5, {}),
        ("transposed, cut off", 3, {}),
        ("groups", 5, {}),
    ],
)
def test_results_are_as_accurate_as_eagers(
    name: str, multiprocessors: int, change: dict[str, int], tmp_path: Path
) -> None:
    device = cuda.DeviceFacts(sm_count=multiprocessors)
    check(CASES[name], {**WARPS, **change}, tmp_path, device)


@pytest.mark.parametrize(
    ("name", "multiprocessors", "tiles"),
    [
        ("tiles of groups", 4, GROUPS),
        ("tiles of groups", 4, {**REGISTERS, "tile_m": 128, "last_wave": 3}),
        ("images", 5, {**REGISTERS, "last_wave": 5}),
    ],
)
def test_warp_groups_compute_the_same(
    name: str, multiprocessors: int, tiles: dict[str, int], tmp_path: Path
) -> None:
    check(CASES[name], tiles, tmp_path, cuda.DeviceFacts(sm_count=multiprocessors))


@pytest.mark.parametrize(
    ("name", "dtype", "multiprocessors", "tiles"),
    [
        ("product", torch.float16, 3, HALF_WARPS),
        ("transposed, stride 2, one more", torch.bfloat16, 4, HALF_WARPS),
        ("boxes", torch.bfloat16, 4, BOTH),
        ("images", torch.float16, 5, {**BOTH, "last_wave": 3}),
        ("boxes", torch.float16, 4, {**BOXES, "last_wave": 5}),
        ("boxes in batches", torch.bfloat16, 4, BOXES),
    ],
)
def test_halves_compute_the_same(
    name: str, dtype: torch.dtype, multiprocessors: int, tiles: dict[str, int], tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    case = function, tuple(x.to(dtype) for x in inputs)
    check(case, tiles, tmp_path, cuda.DeviceFacts(sm_count=multiprocessors))


@pytest.mark.parametrize("special", [math.inf, 3.4e38])
def test_what_is_not_finite_is_as_in_eager(special: float, tmp_path: Path) -> None:
    a, b = randn(40, 70), randn(70, 36)
    a[3, 5], a[38, 60], b[69, 34], a[36, 0] = special, special, special, math.nan
    a[9] = 0.0
    it = of(torch.matmul, a, b)
    (got,) = cuda_emulator.run(*emit(it, WARPS), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


def test_only_tiles_of_the_last_wave_go_through_memory() -> None:
    source, plan = emit(of(*flat("batches")), WARPS, cuda.DeviceFacts(sm_count=6))
    product, join = (s for s in plan.steps if isinstance(s, Launch))
    (partial,) = (b for b in plan.buffers if b.kind == "temporary")
    assert product.grid == (18 + 2 * 2, 1, 1)  # 5 batches of 2 by 2 tiles, 18 at a time
    assert partial.spec.shape == (2 * 2 * 32 * 32,)
    assert join.grid == (2 * 4, 1, 1)
    assert "atomic" not in source[source.index('extern "C"') :]


def flat(name: str) -> tuple[Any, ...]:
    function, inputs = CASES[name]
    return (function, *inputs)


def test_results_are_the_same_each_time(tmp_path: Path) -> None:
    it = of(*flat("bias and GELU"))
    made = emit(it, {**WARPS, "last_wave": 3})
    one, other = (cuda_emulator.run(*made, it.inputs, tmp_path)[0] for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("change", "multiprocessors", "reason"),
    [
        ({}, 2, "whole waves"),
        ({}, 5, "4 tiles for 5"),
        ({"last_wave": 1}, 3, "as long"),
        ({"last_wave": 4}, 3, "70 terms"),
        ({"last_wave": 9}, 3, "70 terms"),
        ({"last_wave": -1}, 3, "last_wave"),
        ({"split": 2}, 3, "one of them"),
        ({"warp_m": 0}, 3, "divide"),
    ],
)
def test_what_brings_nothing_is_refused(
    change: dict[str, int], multiprocessors: int, reason: str
) -> None:
    it = of(*flat("product"))
    with pytest.raises(Unsupported, match=reason):
        emit(it, {**WARPS, **change}, cuda.DeviceFacts(sm_count=multiprocessors))


def test_tiles_with_unequal_numbers_of_terms_have_no_waves() -> None:
    it = test_triangular.on_cuda(lambda a, b: (a @ b).tril(), randn(61, 70), randn(70, 61))
    with pytest.raises(Unsupported, match="unequal"):
        emit(it, WARPS)


GROUP = Tiles(128, 128, 32, 64, 128, 4, 32, group=1)


def test_parts_fill_the_device() -> None:
    def best(tiles: int, terms: int) -> LastWave:
        return best_last_wave(GROUP, 200_000, tiles, terms, DEVICE, 0.02)

    assert best(144, 1536) == LastWave(132, 12, 10)
    assert best(256, 2048).parts == 1
    assert best(264 + 66, 2048) == LastWave(264, 66, 2)
    assert best(144, 96).parts == 1, "shares of less than two steps"


def test_blocks_of_a_multiprocessor_are_counted_by_what_they_take() -> None:
    small = Tiles(64, 64, 32, 32, 32, 4, 16, last_wave=2)

    def whole(shared: int, tiles: int) -> int:
        return last_wave_of(small, shared, tiles, 4096, DEVICE).whole

    assert small.resident == 3
    assert whole(60_000, 7 * 132 + 60) == 6 * 132
    assert whole(100_000, 7 * 132 + 60) == 6 * 132 and whole(100_000, 5 * 132 + 9) == 4 * 132
    assert whole(150_000, 7 * 132 + 60) == 7 * 132
    assert whole(60_000, 132 + 60) == 132, "no more of them than have a tile"


def offered(*sizes: int, tf32: bool = False) -> list[dict[str, Any]]:
    m, n, k = sizes
    it = of(lambda a, b: a @ b, torch.empty(m, k), torch.empty(k, n))
    device = cuda.DeviceFacts(tf32=tf32)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
    return [one.parameters(0) for one in found]


def test_it_is_offered_where_it_saves_time() -> None:
    first, *_ = found = offered(1536, 1536, 1536)
    assert (first["tile_m"], first["tile_n"], first["last_wave"]) == (128, 128, 10)
    without = [{k: v for k, v in one.items() if k != "last_wave"} for one in found]
    assert first | {"last_wave": 0} not in found and without[0] in found, "the plain one as well"


@pytest.mark.parametrize("sizes", [(2048, 2048, 2048), (1024, 1024, 1024), (1536, 1536, 64)])
def test_it_is_not_offered_where_it_does_not(sizes: tuple[int, int, int]) -> None:
    found = offered(*sizes)
    assert not any("last_wave" in one for one in found if one["tile_m"] == one["tile_n"] == 128)


def test_what_is_offered_can_be_written_in_tf32_too() -> None:
    it = of(lambda a, b: a @ b, torch.empty(1536, 1536), torch.empty(1536, 1536))
    device = cuda.DeviceFacts(tf32=True)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, device, 4 * len(WARP_TILES))
    shared = [one for one in found if "last_wave" in one.parameters(0)]
    assert {one.parameters(0)["products"] for one in shared} == {1, 6}
    for one in shared:
        cuda.emit(it.analysis.region, it.analysis.kernels, one, device)


LARGEST = {**GROUPS, "tile_m": 128, "tile_n": 128, "last_wave": 5}


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize(
    ("name", "dtype", "tiles"),
    [
        ("product", torch.float32, LARGEST),
        ("convolution", torch.float32, {**LARGEST, "group": 2, "stages": 5}),
        ("product", torch.bfloat16, {**BOXES, "tile_m": 128, "tile_n": 256, "stages": 4, "last_wave": 2}),
    ],
)
def test_the_largest_tiles_compile_without_spilling(
    name: str, dtype: torch.dtype, tiles: dict[str, int], tmp_path: Path
) -> None:
    function, inputs = test_contraction.LARGE[name]
    it = of(function, *(x.to(dtype) for x in inputs))
    source, plan = emit(it, tiles, cuda.DeviceFacts(sm_count=5))
    candidate = Candidate("cuda", "cuda", source, plan, "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
