"""What follows a product across its loops (shuffled channels or pixels, heads joined again) is done in its tiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import on_cuda, randn, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.alternatives import split
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.loop_nests import LoopNests
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
IMAGE, FILTERS = randn(2, 7, 11, 9), randn(20, 7, 3, 3)
TWENTY = randn(2, 20, 11, 9)


def shuffled(x: Tensor, w: Tensor) -> Tensor:
    return F.channel_shuffle(F.conv2d(x, w, padding=1, groups=4).relu(), 4) + x


def pixels(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return (F.pixel_shuffle(F.conv2d(x, w), 2) + r).clamp(0, 1)


def used_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, w)
    return y.relu(), F.pixel_shuffle(y, 2).tanh()


def heads_joined(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.bmm(x, w).relu().view(2, 4, 9, 6).transpose(1, 2).reshape(2, 9, 24) + r


def patches_joined(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    y = (x @ w).view(2, 3, 4, 2, 2, 5).permute(0, 5, 1, 3, 2, 4)
    return y.reshape(2, 5, 6, 8).sigmoid() + r


def windows_joined(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    y = (x @ w).view(2, 2, 3, 4, 2, 10).permute(0, 1, 3, 2, 4, 5)
    return y.reshape(2, 8, 6, 10) + r


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "shuffled channels": (shuffled, (TWENTY, randn(20, 5, 3, 3))),
    "shuffled pixels": (pixels, (IMAGE, FILTERS, randn(2, 5, 18, 14))),
    "pixels in threes": (
        lambda x, w: F.pixel_shuffle(F.conv2d(x, w), 3).sigmoid(), (IMAGE, FILTERS[:18]),
    ),
    "shuffled pixels and the product": (used_twice, (IMAGE, FILTERS)),
    "heads joined": (heads_joined, (randn(8, 9, 10), randn(8, 10, 6), randn(2, 9, 24))),
    "patches joined": (patches_joined, (randn(24, 10), randn(10, 20), randn(2, 5, 6, 8))),
    "windows joined": (windows_joined, (randn(96, 10), randn(10, 10), randn(2, 8, 6, 10))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_all_is_one_kernel(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = on_cuda(function, *inputs)
    region, kernels = it.analysis.region, it.analysis.kernels
    assert len(kernels) == 1
    offered = cuda.schedules(region, kernels, DEVICE)
    schedule = next(s for s in offered if s.parameters(0)["sketch"] == "contract")
    source, plan = cuda.emit(region, kernels, schedule, DEVICE)
    assert {b.kind for b in plan.buffers} == {"input", "output"}
    got = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    for mine, want in zip(got, it.want, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)


def test_in_half_precision_too(tmp_path: Path) -> None:
    function, inputs = CASES["shuffled channels"]
    it = on_cuda(function, *(x.half() for x in inputs))
    region, kernels = it.analysis.region, it.analysis.kernels
    assert len(kernels) == 1
    schedule = next(
        s
        for s in cuda.schedules(region, kernels, DEVICE)
        if s.parameters(0)["sketch"] == "contract"
    )
    (got,) = cuda_emulator.run(*cuda.emit(region, kernels, schedule, DEVICE), it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-2, atol=1e-2)


def test_that_it_is_written_and_read_once_again_is_offered_beside(tmp_path: Path) -> None:
    """Nobody knows before it is timed which of them is the faster."""
    function, inputs = CASES["shuffled pixels"]
    it = on_cuda(function, *inputs)
    analysis = api.analyse(it.task)
    offered = api.schedules(analysis, DEVICE)  # type: ignore[arg-type]
    apart = [s for s in offered if split(s)[0] == api.APART]
    assert apart[0] in offered[:2] and {len(s.kernels) for s in apart} == {2}
    made = api.generate(analysis, apart[0], DEVICE)  # type: ignore[arg-type]
    assert isinstance(made, Candidate), made
    (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5)


def test_the_cpu_stores_products_along_their_loops() -> None:
    """There a vector has neighbouring columns."""
    function, inputs = CASES["heads joined"]
    found = sample(function, *inputs).analysis
    assert isinstance(found, LoopNests) and len(found.kernels) == 2
