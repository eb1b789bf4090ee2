"""Gathers along channels that lie apart in memory: copied so that they are neighbours, and as eager computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch._inductor import config as inductor_config
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.channel_gather.match import SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.plan import Launch

DEVICE = cuda.DeviceFacts()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def places(*shape: int) -> torch.Tensor:
    """Some of them outside."""
    return 1.3 * (2 * torch.rand(*shape, generator=torch.Generator().manual_seed(5)) - 1)


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "an image at places, some outside": (
        lambda x, p: F.grid_sample(x, p, align_corners=False),
        (randn(2, 12, 9, 11), places(2, 12, 11, 2)),
    ),
    "its border repeated, with a bias for each channel": (
        lambda x, p, b: F.grid_sample(x, p, padding_mode="border", align_corners=True) + b,
        (randn(2, 72, 6, 5), places(2, 8, 5, 2), randn(72, 1, 1)),
    ),
    "the nearest element, channels two by two": (
        lambda x, p: F.grid_sample(x, p, mode="nearest", align_corners=False).exp(),
        (randn(3, 10, 6, 7), places(3, 9, 9, 2)),
    ),
    "an odd number of channels in bfloat16": (
        lambda x, p: F.grid_sample(x.float(), p, align_corners=False),
        (randn(2, 9, 9, 11).bfloat16(), places(2, 12, 11, 2)),
    ),
}


def for_cuda(function: Callable[..., Any], *inputs: torch.Tensor) -> Sample:
    it = sample(function, *inputs)
    return replace(it, task=replace(it.task, target="cuda"))


@pytest.fixture(scope="module", params=CASES)
def it(request: pytest.FixtureRequest) -> Sample:
    function, inputs = CASES[request.param]
    return for_cuda(function, *inputs)


def proposed(it: Sample) -> list[Schedule]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    return [s for s in found if s.parameters(0).get("sketch") == SKETCH]


def test_what_is_gathered_is_copied_first_and_gives_what_eager_gives(
    it: Sample, tmp_path: Path
) -> None:
    found = proposed(it)
    assert found
    for schedule in found:
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
        copy, gather = plan.steps
        assert isinstance(copy, Launch) and isinstance(gather, Launch)
        (table,) = (b.name for b in plan.buffers if b.kind == "temporary")
        assert copy.args[-1] == table and table in gather.args
        (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
        torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_inductor_would_store_between_loops_splits_nothing() -> None:
    function, inputs = CASES["its border repeated, with a bias for each channel"]
    limits = ("realize_opcount_threshold", "realize_acc_reads_threshold", "realize_reads_threshold")
    with inductor_config.patch(dict.fromkeys(limits, 1)):
        assert len(for_cuda(function, *inputs).analysis.kernels) == 1


def test_each_kernel_of_a_region_has_a_copy_of_its_own(tmp_path: Path) -> None:
    x, p, q = randn(2, 12, 9, 11), places(2, 12, 11, 2), places(2, 20, 8, 2)
    it = for_cuda(
        lambda x, p, q: (
            F.grid_sample(x, p, align_corners=False),
            F.grid_sample(x, q, align_corners=False),
        ),
        x,
        p,
        q,
    )
    first = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    assert [k.get("sketch") for k in map(dict, first.kernels)] == [SKETCH, SKETCH]
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, first, DEVICE)
    for got, want in zip(
        cuda_emulator.run(source, plan, it.inputs, tmp_path), it.want, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_neighbouring_channels_are_gathered_as_vectors() -> None:
    it = for_cuda(*_case("an image at places, some outside"))
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, proposed(it)[0], DEVICE)
    gathering = source.rpartition('extern "C"')[2]
    assert "ca::load<L>(m_k0_arg0_1_turned" in gathering and "ca::gather" not in gathering


@pytest.mark.parametrize(
    "layout", [torch.channels_last, torch.contiguous_format], ids=["together", "apart"]
)
def test_channels_that_are_neighbours_already_need_no_copy(layout: torch.memory_format) -> None:
    function, (x, p) = CASES["an image at places, some outside"]
    it = for_cuda(function, x.contiguous(memory_format=layout), p)
    assert bool(proposed(it)) == (layout is torch.contiguous_format)


def test_a_single_element_is_no_image() -> None:
    assert not proposed(for_cuda(lambda x: (x + 1).tanh(), randn(1, 1)))


def test_few_places_are_not_worth_a_copy() -> None:
    function, (x, _) = CASES["an image at places, some outside"]
    assert not proposed(for_cuda(function, x, places(2, 4, 8, 2)))


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    it = for_cuda(*_case("the nearest element, channels two by two"))
    reasons = ({"vector": 4}, "gathered"), ({"wide": 4}, "wide=4"), ({"deep": 8}, "'deep'")
    for change, reason in reasons:
        way = Schedule.of({"sketch": SKETCH, "vector": 2, "wide": 64, **change})
        with pytest.raises(Unsupported, match=reason):
            cuda.emit(it.analysis.region, it.analysis.kernels, way, DEVICE)


def _case(name: str) -> tuple[Any, ...]:
    function, inputs = CASES[name]
    return (function, *inputs)
