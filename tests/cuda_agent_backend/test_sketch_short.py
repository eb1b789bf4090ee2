"""Sums of few terms with many results: what the emulator runs is what eager computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.short_k.writer import MOST_TERMS, SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def holes(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 1], x[5, 2], x[5, 0] = math.nan, math.inf, -math.inf
    return x


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "by rows of both": (lambda a, b: torch.mm(a, b.T), (randn(70, 24), randn(140, 24))),
    "odd, with holes": (torch.mm, (holes(randn(61, 9)), randn(9, 151))),
    "both transposed, addend and GELU": (
        lambda c, a, b: F.gelu(torch.addmm(c, a.T, b.T)), (randn(130), randn(10, 40), randn(130, 10)),
    ),
    "stored by columns": (lambda a, b: (a @ b).t().contiguous(), (randn(132, 11), randn(11, 50))),
    "batches": (torch.bmm, (randn(3, 40, 9), randn(3, 9, 134))),
    "few channels of an image": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 3, 9, 12), randn(33, 3, 3, 3), randn(33)),
    ),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return sample(function, *inputs, target="cuda")


def of(it: Sample, **change: int) -> Schedule:
    return Schedule.of({"sketch": SKETCH, "lanes": 8, "threads": 32, "turns": 1, **change})


@pytest.mark.parametrize(("lanes", "turns"), [(8, 1), (8, 3), (16, 2)])
@pytest.mark.parametrize("name", CASES)
def test_what_an_emulator_runs_gives_what_eager_gives(
    name: str, lanes: int, turns: int, tmp_path: Path
) -> None:
    it = case(name)
    schedule = of(it, lanes=lanes, turns=turns)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5, equal_nan=True)


def test_large_results_of_few_terms_come_this_way_first() -> None:
    it = sample(torch.mm, randn(2100, 24), randn(24, 2100), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    sketches = [s.parameters(0)["sketch"] for s in found]
    assert sketches[0] == SKETCH and sketches.count(SKETCH) <= 2


@pytest.mark.parametrize(
    ("left", "right"),
    [((2100, MOST_TERMS + 1), (MOST_TERMS + 1, 2100)), ((300, 24), (24, 300))],
    ids=["more terms", "few results"],
)
def test_others_are_left_to_tensor_cores(left: tuple[int, int], right: tuple[int, int]) -> None:
    it = sample(torch.mm, randn(*left), randn(*right), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert all(s.parameters(0)["sketch"] != SKETCH for s in found)


def test_neighbours_are_stored_as_one_word() -> None:
    it = case("by rows of both")
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, of(it), DEVICE)
    assert "constexpr int L = 4;" in source


@pytest.mark.parametrize(
    "change", [{"lanes": 7}, {"threads": 2048}, {"threads": 40}, {"turns": 0}, {"depth": 8}]
)
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int]) -> None:
    it = case("by rows of both")
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, of(it, **change), DEVICE)
