"""One long row of odd length: read in whole vectors, the rest added by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.analysis.passes import passes
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.rows.prepare.peel import LEAST, peel_tail
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.loop_nests import LoopNests
from sandbox.plan.candidate import Candidate

DEVICE = DeviceFacts()
LENGTH = LEAST + 3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "sum": (lambda x: x.sum(), (randn(LENGTH),)),
    "mean of a loss, then more": (
        lambda x, y: F.smooth_l1_loss(x, y, beta=0.3).sqrt() + 1,
        (randn(LENGTH), randn(LENGTH)),
    ),
    "half precision": (lambda x: x.float().abs().mean(), (randn(LENGTH).half(),)),
    "two loops that are one": (lambda x: x.exp().mean(), (randn(333, 333),)),
    "two sums of one row": (lambda x: (x.sum(), x.square().sum()), (randn(LENGTH),)),
}  # fmt: skip


def widths(it: Sample) -> set[int]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    return {int(p.get("vector", 0)) for s in found for p in (s.parameters(0),)}


@pytest.mark.parametrize("name", CASES)
def test_every_way_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    assert max(widths(it)) * inputs[0].itemsize == 16
    ran = set()
    for schedule in cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE):
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
        way = schedule.parameters(0).get("exchange"), schedule.parameters(0).get("vector")
        if way in ran:
            continue
        try:
            found = cuda_emulator.run(source, plan, it.inputs, tmp_path)
        except cuda_emulator.NotEmulated:
            continue
        ran.add(way)
        for got, want in zip(found, it.want, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-4)
    assert ran or name == "two sums of one row"  # which meets in clusters, which are not emulated


def test_sums_of_one_row_still_read_it_once() -> None:
    function, inputs = CASES["two sums of one row"]
    it = sample(function, *inputs).analysis
    (kernel,) = it.kernels
    whole = (loops for loops in passes(peel_tail(kernel, it.region.buffers)) if loops.inner)
    assert [len(loops.stages) for loops in whole] == [2]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(), (LEAST + 4,)),
        (lambda x: x.sum(), (LEAST - 1,)),
        (lambda x: x.sum(1), (2, LENGTH)),
        (lambda x: x.amax(), (LENGTH,)),
        (lambda x: x.cumsum(0), (LENGTH,)),
        (lambda x: x - x.sum(), (LENGTH,)),
    ],
)
def test_other_rows_stay_whole(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    it = sample(function, randn(*shape))
    buffers = it.analysis.region.buffers
    assert all(peel_tail(kernel, buffers) == kernel for kernel in it.analysis.kernels)


@pytest.mark.parametrize(("length", "cut"), [(LENGTH, True), (LEAST + 4, False)])
def test_a_row_that_is_cut_is_still_read_past_the_caches(length: int, cut: bool) -> None:
    """In float32, four elements are a vector."""
    it = sample(lambda x: x.sum(), randn(length))
    task = dataclasses.replace(it.task, target="cuda")
    found = api.analyse(task)
    assert isinstance(found, LoopNests)
    assert (peel_tail(found.kernels[0], found.region.buffers) != found.kernels[0]) is cut
    sources = [
        made.source.split('extern "C"', 1)[1]
        for schedule in found.schedules(DeviceFacts())
        if isinstance(made := api.generate(found, schedule, DeviceFacts()), Candidate)
    ]
    assert any("load_once" in source for source in sources)
