"""Products of many small matrices: what the emulator runs is what eager computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch._inductor import config as inductor_config

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.small.writer import FEWEST_BATCHES, SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule

DEVICE = cuda.DeviceFacts()
MANY = FEWEST_BATCHES + 3


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def holes(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[0, 1, 2], x[5, 2, 3], x[5, 0, 1] = math.nan, math.inf, -math.inf
    return x


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "odd": (torch.bmm, (randn(MANY, 17, 23), randn(MANY, 23, 19))),
    "with holes": (torch.bmm, (holes(randn(MANY, 9, 12)), randn(MANY, 12, 8))),
    "addend and more": (
        lambda a, b, c: torch.baddbmm(c, a, b).relu() * 2, (randn(MANY, 8, 11), randn(MANY, 11, 8), randn(8)),
    ),
    "transposed": (lambda a, b: torch.bmm(a.mT, b.mT), (randn(MANY, 12, 10), randn(MANY, 9, 12))),
    "views": (lambda a, b: torch.bmm(a[:, 1:10, ::2], b[:, 2:, 3:]), (randn(MANY, 11, 19), randn(MANY, 12, 12))),
    "two dimensions of batches": (lambda a, b: a.transpose(1, 2) @ b, (randn(64, 9, 9, 9), randn(64, 9, 9, 10))),
    "of one vector each": (lambda a, b: torch.bmm(a, b[None].expand(MANY, 9, 10)), (randn(MANY, 8, 9), randn(9, 10))),
}  # fmt: skip


def for_cuda(name: str) -> Sample:
    function, inputs = CASES[name]
    with inductor_config.patch(comprehensive_padding=False):
        return sample(function, *inputs, target="cuda")


def proposals(it: Sample) -> list[Schedule]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    return [s for s in found if s.parameters(0)["sketch"] == SKETCH]


@pytest.mark.parametrize("name", [name for name in CASES if name != "of one vector each"])
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    it = for_cuda(name)
    found = proposals(it)
    assert len(found) > 2
    for schedule in (found[0], found[-1]):
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
        outputs = cuda_emulator.run(source, plan, it.inputs, tmp_path)
        for got, want in zip(outputs, it.want, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_matrices_that_follow_each_other_come_in_whole_words() -> None:
    it = for_cuda("odd")
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, proposals(it)[0], DEVICE)
    assert "copy_async(left" in source and "copy_async(right" in source


def test_products_with_one_matrix_are_left_to_large_tiles() -> None:
    assert not proposals(for_cuda("of one vector each"))


@pytest.mark.parametrize(
    "change", [{"matrices": 0}, {"threads": 2048}, {"rows": 64, "columns": 2}, {"depth": 8}]
)
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int]) -> None:
    it = for_cuda("odd")
    schedule = Schedule.of({**proposals(it)[0].parameters(0), **change})
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
