"""Sums of products of halves that the copy engine brings: as accurate, and offered where operands are such tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm import tma_boxes as cuda_boxes
from cuda_agent_backend.codegen.cuda.gemm.candidates import TMA_TILES
from cuda_agent_backend.codegen.cuda.gemm.tiles import MainLoop
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch, TensorMap

DEVICE = cuda.DeviceFacts()
BOXES = int(MainLoop.HALF_WGMMA_TMA)
TILES = {"sketch": "contract", "tile_m": 64, "tile_n": 64, "depth": 64, "warp_m": 64, "warp_n": 64, "stages": 3,
         "run": 0, "split": 1, "products": 1, "group": BOXES}  # fmt: skip
BF16, F16 = torch.bfloat16, torch.float16
Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def randn(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def of_heads(q: Tensor, k: Tensor) -> Tensor:
    return q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)


CASES: dict[str, Case] = {
    "linear": (lambda *a: F.gelu(F.linear(*a)), (randn(150, 264), randn(136, 264), randn(136))),
    "columns are contiguous": (torch.matmul, (randn(150, 264), randn(264, 136))),
    "both transposed": (lambda a, b: a.T @ b.T, (randn(264, 144), randn(136, 264))),
    "batches": (torch.bmm, (randn(3, 136, 72, dtype=F16), randn(3, 72, 80, dtype=F16))),
    "a part of another": (lambda a, b: a[8:, 16:80] @ b, (randn(90, 96), randn(64, 72))),
    "one for all batches": (torch.matmul, (randn(70, 64), randn(3, 64, 72))),
    "pointwise convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b)),
        (randn(3, 72, 8, 9), randn(80, 72, 1, 1), randn(80)),
    ),
    "tokens of a part": (lambda x, w: x[:, 1:] @ w, (randn(3, 30, 64), randn(64, 72))),
    "heads inside": (of_heads, (randn(2, 70, 3, 64), randn(2, 66, 3, 64))),
}


def emit(it: Sample, **change: Any) -> tuple[str, Any]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    others = [found.parameters(n) for n in range(1, len(found.kernels))]
    schedule = Schedule.of({**TILES, **change}, *others)
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tile_m": 128, "tile_n": 256, "stages": 4},
        {"tile_m": 256, "tile_n": 128},
        {"tile_n": 128, "split": 2, "stages": 6},
    ],
)
def test_results_are_as_accurate_as_eagers(
    name: str, change: dict[str, int], tmp_path: Path
) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs, target="cuda")
    source, plan = emit(it, **change)
    assert "copy_box" in source[source.index('extern "C"') :]
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    want = function(*(x.double() for x in inputs))
    assert relative(got, want) < 1.2 * relative(it.want[0], want)


def test_copies_of_operands_whose_rows_do_not_begin_evenly_are_boxed(tmp_path: Path) -> None:
    a, b = randn(70, 259), randn(259, 66)
    it = sample(torch.matmul, a, b, target="cuda")
    with pytest.raises(Unsupported, match="multiples of 16"):
        emit(it)
    source, plan = emit(it, aligned=1)
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    want = a.double() @ b.double()
    assert relative(got, want) < 1.2 * relative(it.want[0], want)


def test_infinities_and_nan_survive(tmp_path: Path) -> None:
    a, b = randn(70, 72, dtype=F16), randn(72, 64, dtype=F16)
    a[3, 5], b[70, 7], a[9] = torch.inf, torch.nan, 0.0
    it = sample(torch.matmul, a, b, target="cuda")
    (got,) = cuda_emulator.run(*emit(it), it.inputs, tmp_path)
    want = (a.double() @ b.double()).to(F16)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-2, atol=1e-2)


def maps(name: str) -> list[TensorMap]:
    function, inputs = CASES[name]
    _, plan = emit(sample(function, *inputs, target="cuda"))
    (launch,) = (s for s in plan.steps if isinstance(s, Launch))
    return [a for a in launch.args if isinstance(a, TensorMap)]


def test_maps_say_where_operands_are() -> None:
    def described(name: str) -> list[tuple[object, ...]]:
        return [(m.shape, m.stride, m.box, m.offset) for m in maps(name)]

    assert described("columns are contiguous") == [
        ((264, 150), (264,), (64, 64), 0),
        ((136, 264), (136,), (64, 64), 0),
    ]
    assert described("a part of another")[0] == ((64, 82), (96,), (64, 64), 8 * 96 + 16)
    assert described("batches")[0] == ((72, 136, 3), (72, 136 * 72), (64, 64, 1), 0)
    assert [m.shape for m in maps("heads inside")] == [(64, 70, 2, 3), (64, 66, 2, 3)]


def test_images_are_batches() -> None:
    function, inputs = CASES["pointwise convolution"]
    it = sample(function, *inputs, target="cuda")
    _, plan = emit(it)
    (launch,) = (s for s in plan.steps if isinstance(s, Launch))
    assert launch.grid == (2 * 2, 1, 3)  # tiles of channels and of one image's points
    assert [m.shape for m in maps("pointwise convolution")] == [(72, 72, 3), (72, 80)]
    assert maps("tokens of a part")[0].offset == 64


def test_large_products_are_tried_so_first() -> None:
    def first(*inputs: Tensor, **facts: Any) -> list[object]:
        it = sample(F.linear, *inputs, target="cuda")
        device = cuda.DeviceFacts(**facts)
        found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
        return [s.parameters(0)["group"] for s in found]

    large = torch.empty(4096, 4096, dtype=BF16)
    found = first(large, large)
    assert found[0] == BOXES and set(found) > {BOXES, 3}
    assert BOXES not in first(large, large, arch="sm_90")
    assert BOXES not in first(large.float(), large.float())


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: F.conv2d(x, w, padding=1), (randn(2, 8, 9, 9), randn(64, 8, 3, 3))),
        (lambda a, b: a[:, ::2] @ b, (randn(70, 128), randn(64, 72))),
        (lambda a, b: a @ b, (randn(70, 36), randn(36, 72))),
    ],
)
def test_other_operands_are_not_boxed(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> None:
    it = sample(function, *inputs, target="cuda")
    with pytest.raises(Unsupported, match="boxes"):
        emit(it)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert BOXES not in {
        s.parameters(0).get("group") for s in found if not s.parameters(0).get("aligned")
    }


def test_strides_that_no_plan_takes_are_not_boxed(monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs = CASES["linear"]
    it = sample(function, *inputs, target="cuda")
    monkeypatch.setattr(cuda_boxes, "FAR", 264)
    with pytest.raises(Unsupported, match="too far apart"):
        emit(it)


@pytest.mark.parametrize(
    "change", [{"stages": 9}, {"stages": 2}, {"tile_n": 96}, {"run": 64}, {"depth": 32}]
)
def test_tiles_that_do_not_fit_are_unsupported(change: dict[str, int]) -> None:
    function, inputs = CASES["linear"]
    with pytest.raises(Unsupported):
        emit(sample(function, *inputs, target="cuda"), **change)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", ["linear", "both transposed", "batches"])
@pytest.mark.parametrize("tile", TMA_TILES)
def test_no_tile_spills(name: str, tile: tuple[int, int, int, float], tmp_path: Path) -> None:
    function, inputs = CASES[name]
    rows, columns, stages, _ = tile
    it = sample(function, *inputs, target="cuda")
    source, plan = emit(it, tile_m=rows, tile_n=columns, stages=stages)
    candidate = Candidate("cuda", "cuda", source, plan, "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
