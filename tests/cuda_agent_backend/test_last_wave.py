"""Tiles of a product's last wave that blocks share: as accurate, kept apart from the others, offered where it pays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import test_contraction
import test_triangular
import torch
from kit.compare import relative
from sketch_kit import Sample, beginning_with, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.candidates import TILES as WARP_TILES
from cuda_agent_backend.codegen.cuda.gemm.tail_wave import TailWave, best_tail_wave, tail_wave_of
from cuda_agent_backend.codegen.cuda.gemm.tiles import Tiles
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch

pytestmark = pytest.mark.usefixtures("plain_layouts")

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


def of(function: Callable[..., Any], *inputs: Tensor) -> Sample:
    return sample(function, *inputs, target="cuda")


def emit(it: Sample, tiles: dict[str, Any], device: cuda.DeviceFacts = THREE) -> tuple[str, Any]:
    found = beginning_with(tiles, it, device)
    return cuda.emit(it.analysis.region, it.analysis.kernels, found, device)


@dataclass(frozen=True)
class Shared:
    """A case whose last wave is shared, on a device of few multiprocessors, so that small products have such a wave."""

    name: str
    multiprocessors: int
    tiles: dict[str, int | str]
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        group = self.tiles.get("group", 0)
        return f"{self.name}, {self.dtype}, group {group}, {self.tiles['last_wave']} parts"

    @property
    def device(self) -> cuda.DeviceFacts:
        return cuda.DeviceFacts(sm_count=self.multiprocessors)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.to(self.dtype) for x in CASES[self.name][1])

    def sample(self) -> Sample:
        return of(CASES[self.name][0], *self.inputs)

    def in_float64(self) -> list[Tensor]:
        found = CASES[self.name][0](*(x.double() for x in self.inputs))
        return [found] if isinstance(found, Tensor) else list(found)


BF16, F16 = torch.bfloat16, torch.float16
SHARED = [
    Shared("product", 3, {**WARPS, "last_wave": 5}),
    Shared("several outputs", 3, {**WARPS, "last_wave": 3}),
    Shared("bias and GELU", 3, {**WARPS, "warps_k": 2, "depth": 32, "last_wave": 3}),
    Shared("stored by columns", 3, WARPS),
    Shared("batches", 4, {**WARPS, "tile_m": 16, "last_wave": 4}),
    Shared("convolution, bias and ReLU", 4, {**WARPS, "last_wave": 5}),
    Shared("transposed, stride 2, one more", 5, WARPS),
    Shared("transposed, cut off", 3, WARPS),
    Shared("groups", 5, WARPS),
    Shared("tiles of groups", 4, GROUPS),
    Shared("tiles of groups", 4, {**REGISTERS, "tile_m": 128, "last_wave": 3}),
    Shared("images", 5, {**REGISTERS, "last_wave": 5}),
    Shared("product", 3, HALF_WARPS, F16),
    Shared("transposed, stride 2, one more", 4, HALF_WARPS, BF16),
    Shared("boxes", 4, BOTH, BF16),
    Shared("images", 5, {**BOTH, "last_wave": 3}, F16),
    Shared("boxes", 4, {**BOXES, "last_wave": 5}, F16),
    Shared("boxes in batches", 4, BOXES, BF16),
]


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_results_are_as_accurate_as_eagers(case: Shared, tmp_path: Path) -> None:
    it = case.sample()
    results = cuda_emulator.run(*emit(it, case.tiles, case.device), it.inputs, tmp_path)
    for got, eager, want in zip(results, it.want, case.in_float64(), strict=True):
        assert relative(got, want) < 1.5 * relative(eager, want) + 1e-7


@pytest.mark.parametrize("special", [math.inf, 3.4e38])
def test_what_is_not_finite_is_as_in_eager(special: float, tmp_path: Path) -> None:
    a, b = randn(40, 70), randn(70, 36)
    a[3, 5], a[38, 60], b[69, 34], a[36, 0] = special, special, special, math.nan
    a[9] = 0.0
    it = of(torch.matmul, a, b)
    (got,) = cuda_emulator.run(*emit(it, WARPS), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True, rtol=1e-5, atol=1e-5)


def test_only_tiles_of_the_last_wave_go_through_memory(tmp_path: Path) -> None:
    it = Shared("batches", 6, WARPS).sample()
    source, plan = emit(it, WARPS, cuda.DeviceFacts(sm_count=6))
    product, join = (s for s in plan.steps if isinstance(s, Launch))
    (partial,) = (b for b in plan.buffers if b.kind == "temporary")
    assert product.grid == (18 + 2 * 2, 1, 1)  # 5 batches of 2 by 2 tiles, 18 at a time
    assert partial.spec.shape == (2 * 2 * 32 * 32,)
    assert join.grid == (2 * 4, 1, 1)
    assert "atomic" not in source[source.index('extern "C"') :]
    (got,) = cuda_emulator.run(source, replace(plan, steps=(product,)), it.inputs, tmp_path)
    assert got[4, :, 32:].isnan().all(), "stored before all parts were there"
    got[4, :, 32:] = it.want[0][4, :, 32:]
    torch.testing.assert_close(got, it.want[0], rtol=1e-4, atol=1e-4)


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
        ({"warp_m": 24}, 3, "divide"),
    ],
)
def test_what_brings_nothing_is_refused(
    change: dict[str, int], multiprocessors: int, reason: str
) -> None:
    it = Shared("product", multiprocessors, WARPS).sample()
    with pytest.raises(Unsupported, match=reason):
        emit(it, {**WARPS, **change}, cuda.DeviceFacts(sm_count=multiprocessors))


def test_tiles_with_unequal_numbers_of_terms_have_no_waves() -> None:
    it = test_triangular.on_cuda(lambda a, b: (a @ b).tril(), randn(61, 70), randn(70, 61))
    with pytest.raises(Unsupported, match="unequal"):
        emit(it, WARPS)


GROUP = Tiles(128, 128, 32, 64, 128, 4, 32, group=1)


def test_parts_fill_the_device() -> None:
    def best(tiles: int, terms: int) -> TailWave:
        return best_tail_wave(GROUP, 200_000, tiles, terms, DEVICE, 0.02)

    assert best(144, 1536) == TailWave(132, 12, 10)
    assert best(256, 2048).parts == 1
    assert best(264 + 66, 2048) == TailWave(264, 66, 2)
    assert best(144, 96).parts == 1, "shares of less than two steps"


def test_blocks_of_a_multiprocessor_are_counted_by_what_they_take() -> None:
    small = Tiles(64, 64, 32, 32, 32, 4, 16, last_wave=2)

    def whole(shared: int, tiles: int) -> int:
        return tail_wave_of(small, shared, tiles, 4096, DEVICE).whole

    assert small.resident == 3
    assert whole(60_000, 7 * 132 + 60) == 6 * 132
    assert whole(100_000, 7 * 132 + 60) == 6 * 132 and whole(100_000, 5 * 132 + 9) == 4 * 132
    assert whole(150_000, 7 * 132 + 60) == 7 * 132
    assert whole(60_000, 132 + 60) == 132, "no more of them than have a tile"


def offered(m: int, n: int, k: int) -> list[dict[str, Any]]:
    it = of(torch.matmul, torch.empty(m, k), torch.empty(k, n))
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    return [one.parameters(0) for one in found]


def test_it_is_offered_where_it_saves_time_beside_the_same_without() -> None:
    first, *others = offered(1536, 1536, 1536)
    assert (first["tile_m"], first["tile_n"], first["last_wave"]) == (128, 128, 10)
    assert {name: value for name, value in first.items() if name != "last_wave"} in others


@pytest.mark.parametrize("sizes", [(2048, 2048, 2048), (1024, 1024, 1024), (1536, 1536, 64)])
def test_it_is_not_offered_where_it_saves_none(sizes: tuple[int, int, int]) -> None:
    assert not any("last_wave" in one for one in offered(*sizes))


def test_what_is_offered_can_be_written_in_tf32_too() -> None:
    it = of(lambda a, b: a @ b, torch.empty(1536, 1536), torch.empty(1536, 1536))
    device = cuda.DeviceFacts(tf32=("matmul",))
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
        (
            "product",
            torch.bfloat16,
            {**BOXES, "tile_m": 128, "tile_n": 256, "stages": 4, "last_wave": 2},
        ),
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
