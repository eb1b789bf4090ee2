"""Sums of products of float16 and bfloat16 for cuda: recognised, written, and as accurate as eager's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import test_contraction
import test_contraction_aligned
import torch
from kit.compare import relative
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.analysis.gemm import numbers_of
from cuda_agent_backend.codegen.api import as_it_stands
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
HALVES = [torch.float16, torch.bfloat16]
TILES = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 32, "warp_m": 16, "warp_n": 16, "stages": 3,
         "products": 1}  # fmt: skip
PLAIN = {name: case for name, case in test_contraction.CASES.items() if name != "scaled operands"}
"""What is scaled is rounded to 16 bits before it is multiplied, which a tail would not do."""
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **PLAIN,
    **{f"{name}, aligned": case[:2] for name, case in test_contraction_aligned.CASES.items()},
}


def halves(name: str, dtype: torch.dtype) -> tuple[Sample, Tensor]:
    """The case with operands of ``dtype``, and what it gives in float64."""
    function, inputs = FUNCTIONS[name]
    inputs = tuple(x.to(dtype) for x in inputs)
    return sample(function, *inputs, target="cuda"), function(*(x.double() for x in inputs))


def with_tiles(it: Sample, **change: Any) -> Schedule:
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    rest = next(s for s in offered if len(s.kernels) == len(it.analysis.kernels))
    others = [rest.parameters(n) for n in range(1, len(rest.kernels))]
    return Schedule.of({**TILES, **change}, *others)


def best(it: Sample) -> Schedule:
    return cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]


def emulated(it: Sample, schedule: Schedule, folder: Path) -> Tensor:
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, folder)
    return got


@pytest.mark.parametrize(("name", "dtype"), zip(PLAIN, itertools.cycle(HALVES), strict=False))
def test_sums_of_halves_are_as_accurate_as_eagers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    it, want = halves(name, dtype)
    assert best(it).parameters(0)["sketch"] in ("contract", "contract_rows")
    for schedule in (best(it), with_tiles(it, split=3)):
        got = emulated(it, schedule, tmp_path)
        assert got.dtype == dtype
        assert relative(got, want) < 1.2 * relative(it.want[0], want) + 1e-6, schedule


@pytest.mark.parametrize("name", test_contraction_aligned.SEVERAL_WAYS)
def test_halves_that_are_copied_first_give_the_same(name: str, tmp_path: Path) -> None:
    it, want = halves(f"{name}, aligned", torch.bfloat16)
    schedule = with_tiles(it, aligned=1)
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert "ca::store<8>(m_k0_" in source
    got = emulated(it, schedule, tmp_path)
    assert relative(got, want) < 1.2 * relative(it.want[0], want)


@pytest.mark.parametrize("name", ["both transposed", "convolution"])
@pytest.mark.parametrize(
    "change",
    [
        {"tile_m": 128, "tile_n": 64, "warp_m": 64, "warp_n": 32, "depth": 64},
        {"tile_m": 64, "tile_n": 128, "warp_m": 32, "warp_n": 64, "stages": 2},
        {"depth": 128, "warps_k": 4, "warp_m": 32, "warp_n": 32},
        {"tile_m": 16, "depth": 64, "warps_k": 2, "split": 2, "stages": 4},
        {"depth": 128, "warps_k": 8, "stages": 2},
    ],
)
def test_tiles_of_any_shape_compute_the_same(
    name: str, change: dict[str, int], tmp_path: Path
) -> None:
    it, want = halves(name, torch.float16)
    got = emulated(it, with_tiles(it, **change), tmp_path)
    assert relative(got, want) < 1.2 * relative(it.want[0], want)


WIDE = {"group": 3, "depth": 64, "stages": 4, "warp_m": 64, "warp_n": 64}


@pytest.mark.parametrize(
    ("name", "dtype", "change"),
    [
        ("product", torch.bfloat16, {"tile_m": 128, "tile_n": 128}),
        ("both transposed", torch.float16, {"tile_m": 128, "tile_n": 256, "stages": 3}),
        ("whole tiles", torch.float16, {"tile_m": 64, "tile_n": 64}),
        ("long sums", torch.bfloat16, {"tile_m": 64, "tile_n": 64, "split": 3}),
        ("channels last", torch.float16, {"tile_m": 128, "tile_n": 64}),
        ("convolution", torch.bfloat16, {"tile_m": 64, "tile_n": 64}),
        ("convolution", torch.float16, {"tile_m": 128, "tile_n": 128, "stages": 3, "split": 2}),
        ("all sizes odd, aligned", torch.bfloat16, {"tile_m": 256, "tile_n": 128, "aligned": 1}),
    ],
)
def test_warp_groups_that_take_both_operands_from_shared_memory_compute_the_same(
    name: str, dtype: torch.dtype, change: dict[str, int], tmp_path: Path
) -> None:
    it, want = halves(name, dtype)
    got = emulated(it, with_tiles(it, **WIDE | change), tmp_path)
    assert relative(got, want) < 1.2 * relative(it.want[0], want)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 6e4])
def test_what_is_not_finite_survives(
    special: float, split: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    a, b = (test_contraction.randn(*size).to(dtype) for size in ((40, 70), (70, 36)))
    a[3, 5], b[69, 7] = special, special
    a[9] = 0.0
    it = sample(lambda a, b: a @ b, a, b, target="cuda")
    source, _ = cuda.emit(
        it.analysis.region, it.analysis.kernels, with_tiles(it, split=split), DEVICE
    )
    assert "exact" not in source[source.index('extern "C"') :]
    got = emulated(it, with_tiles(it, split=split), tmp_path)
    want = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("where", ["image", "weight"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
    ],
)
def test_infinities_spread_as_far_as_in_float64(
    function: Callable[..., Tensor], where: str, tmp_path: Path
) -> None:
    x, w = (test_contraction.randn(*size).bfloat16() for size in ((2, 8, 6, 5), (8, 8, 3, 3)))
    (x if where == "image" else w)[1, 2, 0, 1] = math.inf
    it = sample(function, x, w, target="cuda")
    got = emulated(it, with_tiles(it), tmp_path)
    want = function(x.double(), w.double()).bfloat16()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-2, atol=2e-2)


def largest_of_four(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, w).unflatten(1, (-1, 4)).amax(2)


@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_reduction_reads_of_a_product_is_rounded_with_its_addend(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    x, w = torch.randn(64, 96).to(dtype), torch.randn(96, 64).to(dtype)
    bias = -(x[0].double() @ w.double()).to(dtype)  # cancels the first row
    it = sample(largest_of_four, x, w, bias, target="cuda")
    sums = (x.double() @ w.double() + bias.double()).to(dtype)
    for schedule in (best(it), with_tiles(it, split=3)):
        got = emulated(it, schedule, tmp_path)
        want = sums.unflatten(1, (-1, 4)).amax(2)
        torch.testing.assert_close(got, want, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_a_reader_of_several_results_is_refused_with_a_reason() -> None:
    inputs = (torch.randn(64), torch.randn(64, 96), torch.randn(96, 64))
    it = sample(
        lambda *a: torch.frexp(torch.addmm(*a))[0], *(x.half() for x in inputs), target="cuda"
    )
    assert isinstance(as_it_stands(it.task), NotCovered)


def test_what_follows_a_product_element_by_element_stays_in_its_kernel() -> None:
    def turned(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, x, w).t().contiguous().relu()

    inputs = (torch.randn(64, 96), torch.randn(96, 64), torch.randn(64))
    it = sample(turned, *(x.half() for x in inputs), target="cuda")
    assert len(it.analysis.kernels) == 1


def test_copies_are_as_wide_as_memory_allows() -> None:
    def widths(name: str) -> list[str]:
        it, _ = halves(name, torch.float16)
        source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, with_tiles(it), DEVICE)
        return [
            line.split(",")[4].strip()
            for line in source.splitlines()
            if line.startswith("  typedef ca::half_operand")
        ]

    assert widths("whole tiles") == ["8", "8"]
    assert widths("channels last") == ["8", "8"]
    assert widths("product") == ["2", "2"]
    assert widths("all sizes odd, aligned") == ["1", "1"]


@pytest.mark.parametrize(
    "change",
    [
        {"products": 6},
        {"run": 32},
        {"group": 1},
        {"warp_n": 8},
        {"depth": 24},
        {**WIDE, "depth": 32},
        {**WIDE, "tile_m": 32},
        {**WIDE, "tile_n": 96},
        {**WIDE, "stages": 2},
    ],
)
def test_schedules_of_float32_do_not_fit(change: dict[str, int]) -> None:
    it, _ = halves("whole tiles", torch.float16)
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, with_tiles(it, **change), DEVICE)


def test_factors_of_different_dtypes_are_no_sum_of_products_of_halves() -> None:
    a, b = torch.randn(40, 30).bfloat16(), torch.randn(30, 20)
    it = sample(lambda a, b: (a.unsqueeze(2) * b).sum(1), a, b, target="cuda")
    assert numbers_of(it.analysis.kernels[0]) is None
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert {s.parameters(0)["sketch"] for s in found} == {"row"}


def test_small_halves_are_left_to_tensor_cores() -> None:
    a, b = (torch.randn(600, 16, 16).half() for _ in range(2))
    it = sample(torch.bmm, a, b, target="cuda")
    assert best(it).parameters(0)["sketch"] == "contract"


LARGE = (lambda *a: F.gelu(F.linear(*a)), (512, 1024), (768, 1024), (768,))
ODD = (lambda a, b: a @ b, (511, 1023), (1023, 767))
IMAGE = (lambda *a: F.relu(F.conv2d(*a, padding=1)), (2, 64, 56, 56), (128, 64, 3, 3), (128,))


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", [LARGE, ODD, IMAGE])
def test_the_largest_tiles_compile_without_spilling(
    case: tuple[Any, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    function, *sizes = case
    it = sample(function, *(torch.randn(*s).to(dtype) for s in sizes), target="cuda")
    offered = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE, 40)
    chosen = max(
        offered, key=lambda s: int(s.parameters(0)["warp_m"]) * int(s.parameters(0)["warp_n"])
    )
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, chosen, DEVICE)
    built = compile_candidate(
        Candidate("cuda", "cuda", source, plan, "sketch"), tmp_path, "sm_90a", 120
    )
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
