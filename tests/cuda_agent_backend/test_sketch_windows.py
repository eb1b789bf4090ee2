"""Poolings and depthwise convolutions as loops: what the emulator and the cpu run is what eager computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, run_cpu, sample
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.accuracy.rule import Draw, compare_draws
from sandbox.plan.candidate import Candidate


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def holes(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[0, 1, 5, 7], x[1, 2, 20, 3], x[1, 0] = math.nan, math.inf, -math.inf
    return x


IMAGES, VOLUMES, LINES = randn(2, 3, 23, 26), randn(2, 3, 9, 14, 13), randn(3, 4, 203)
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "box": (lambda x: F.avg_pool2d(x, 7, stride=1, padding=3, count_include_pad=False), (IMAGES,)),
    "box, cut windows": (lambda x: F.avg_pool2d(x, (6, 5), stride=4, padding=2, ceil_mode=True), (IMAGES,)),
    "box in a loop": (
        lambda x: F.avg_pool2d(x, 11, stride=2, padding=4, ceil_mode=True, count_include_pad=False), (IMAGES,),
    ),
    "box by another number": (lambda x: F.avg_pool2d(x, 7, stride=2, divisor_override=3), (IMAGES,)),
    "box of halves": (lambda x: F.avg_pool2d(x, 7, stride=2, padding=3), (IMAGES.half(),)),
    "box with holes": (lambda x: F.avg_pool2d(x, 7, stride=2, padding=3), (holes(IMAGES),)),
    "volumes": (lambda x: F.avg_pool3d(x, (4, 3, 3), stride=(2, 3, 3)).relu(), (VOLUMES,)),
    "uneven averages": (lambda x: F.adaptive_avg_pool2d(x * 2, (5, 4)), (IMAGES,)),
    "averages that divide": (lambda x: F.adaptive_avg_pool2d(x, (23, 2)), (IMAGES,)),
    "uneven averages of volumes": (lambda x: F.adaptive_avg_pool3d(x, (4, 5, 3)), (VOLUMES,)),
    "uneven maxima of volumes": (lambda x: F.adaptive_max_pool3d(x, (4, 5, 3)), (VOLUMES,)),
    "uneven maxima with holes": (lambda x: F.adaptive_max_pool2d(x, (5, 4)), (holes(IMAGES),)),
    "large maxima with holes": (lambda x: F.max_pool2d(x, 7, stride=2, padding=3, ceil_mode=True), (holes(IMAGES),)),
    "roots of sums of squares": (lambda x: F.lp_pool2d(x, 2.0, 3, stride=2), (IMAGES,)),
    "dilated maxima": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1, dilation=3), (holes(IMAGES),)),
    "maxima of lines": (lambda x: F.max_pool1d(x, 25, stride=5, padding=12), (LINES,)),
}  # fmt: skip


def averaged(
    x: torch.Tensor, kernel: Sequence[int], step: Sequence[int], edge: Sequence[int]
) -> Case:
    grad = randn(*F.avg_pool2d(x, kernel, step, edge).shape)
    back = torch.ops.aten.avg_pool2d_backward
    return lambda g, x: back(g, x, kernel, step, edge, False, False, None), (grad, x)


def flipped(case: Case) -> Case:
    function, inputs = case
    return lambda *given: function(*given).flip(-1), inputs


def maximal(x: torch.Tensor, kernel: Sequence[int], step: Sequence[int]) -> Case:
    most, places = torch.ops.aten.max_pool2d_with_indices(x, kernel, step)
    back = torch.ops.aten.max_pool2d_with_indices_backward
    return lambda g, x, i: back(g, x, kernel, step, [0, 0], [1, 1], False, i), (
        randn(*most.shape),
        x,
        places,
    )


GRADIENTS: dict[str, Case] = {
    "averages of lines": averaged(LINES[:, :, None, :37], (1, 7), (1, 3), (0, 0)),
    "averages of lines, read backwards": flipped(
        averaged(LINES[:, :, None, :37], (1, 7), (1, 3), (0, 2))
    ),
    "averages": averaged(IMAGES, (6, 5), (4, 3), (2, 1)),
    "maxima of lines": maximal(LINES[:, :, None, :37], (1, 3), (1, 2)),
    "maxima": maximal(IMAGES, (5, 3), (2, 2)),
}
"""Each element looks for the windows that it is in, of which the first begin before the input does."""


def depthwise(**how: Any) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        made = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3](x, w, *bias, groups=x.shape[1], **how)
        return made if bias else made * 2

    return run


FILTERS: dict[str, Case] = {
    "lines": (depthwise(padding=6, dilation=2), (LINES, randn(4, 1, 7))),
    "images": (depthwise(padding=1), (IMAGES, randn(3, 1, 3, 3), randn(3))),
    "images by steps": (depthwise(padding=(4, 0), stride=(1, 2)), (IMAGES, randn(3, 1, 9, 5), randn(3))),
    "images, twice the channels": (depthwise(), (IMAGES, randn(6, 1, 3, 2))),
    "images, channels last": (
        depthwise(padding=1),
        (IMAGES.contiguous(memory_format=torch.channels_last), randn(3, 1, 3, 3)),
    ),
    "images in a loop": (depthwise(padding=5), (IMAGES, randn(3, 1, 11, 11))),
    "volumes": (depthwise(padding=1), (VOLUMES, randn(3, 1, 3, 3, 3), randn(3))),
}  # fmt: skip


def for_cuda(case: Case) -> Sample:
    function, inputs = case
    with inductor_config.patch(comprehensive_padding=False):
        it = sample(function, *inputs)
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


def emulated(it: Sample, folder: Path, most: int = 2) -> list[list[torch.Tensor]]:
    results = []
    for schedule in it.analysis.schedules()[:8]:
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        try:
            results.append(cuda_emulator.run(made.source, made.plan, it.inputs, folder))
        except cuda_emulator.NotEmulated:
            continue
        if len(results) == most:
            break
    assert results
    return results


def assert_close(outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for got, want in zip(outputs, wanted, strict=True):
        loose = 2e-3 if want.dtype == torch.float16 else 1e-4
        torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_an_emulator_pools_as_eager_does(name: str, tmp_path: Path) -> None:
    it = for_cuda(CASES[name])
    for outputs in emulated(it, tmp_path):
        assert_close(outputs, it.want)


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_pools_as_eager_does(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    assert_close(run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path), it.want)


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_comes_from_the_windows_that_an_element_is_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch 2.13 makes a scatter of a gradient of maxima, 2.11 these loops
    loops = {
        k: v
        for k, v in select_decomp_table().items()
        if "max_pool2d_with_indices_backward" not in str(k)
    }
    monkeypatch.setattr("sketch_kit.select_decomp_table", lambda: loops)
    it = for_cuda(GRADIENTS[name])
    for outputs in emulated(it, tmp_path):
        assert_close(outputs, it.want)


def infinite_windows() -> torch.Tensor:
    """Windows of 6 by 6: an infinity and then two numbers whose sum overflows, in its next row; two infinities of both
    signs; a NaN; three numbers of which the first two overflow and all do not."""
    x, most = randn(1, 1, 12, 14), torch.finfo(torch.float32).max
    x[0, 0, 1, 3], x[0, 0, 2, 1:3] = math.inf, -most
    x[0, 0, 0, 8], x[0, 0, 3, 9] = math.inf, -math.inf
    x[0, 0, 7, 2] = math.nan
    x[0, 0, 6, 8], x[0, 0, 6, 9], x[0, 0, 11, 12] = most, most, -most
    return x.expand(1, 20, 12, 14).contiguous()


@pytest.mark.parametrize("lanes", ["inner", "outer"])
def test_a_sum_is_nan_where_its_terms_say_so_and_nowhere_else(lanes: str, tmp_path: Path) -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, 6, stride=(6, 1), divisor_override=2)

    it = sample(pool, infinite_windows())
    (eager,) = it.want
    exact = pool(it.inputs[0].double())
    assert eager[0, 0, 0, 0] == exact[0, 0, 0, 0] == math.inf
    assert exact[0, 0, 0, 5].isnan() and exact[0, 0, 1, 1].isnan()
    assert eager[0, 0, 1, 7] == math.inf and exact[0, 0, 1, 7].isfinite()
    way = next(s for s in it.analysis.schedules() if dict(s.parameters(0))["lanes"] == lanes)
    (got,) = run_cpu(it.analysis, way, it.inputs, tmp_path)
    assert torch.equal(got.isnan(), exact.isnan())
    assert compare_draws([Draw([got], [eager], [exact], beyond=True)]).passes


def test_where_maxima_are_is_left_to_inductor() -> None:
    it = sample(lambda x: F.adaptive_max_pool2d(x, (5, 4), return_indices=True), IMAGES)
    found = api.analyse(it.task)
    assert isinstance(found, api.NotCovered) and "eager's own kernel" in found.reason


def test_what_follows_a_window_is_of_one_pass_with_it() -> None:
    schedules = for_cuda(CASES["roots of sums of squares"]).analysis
    ways = api.schedules(schedules)
    assert {dict(kernel)["sketch"] for way in ways for kernel in way.kernels} == {"map"}


@pytest.mark.parametrize("name", FILTERS)
def test_an_emulator_filters_channels_as_eager_does(name: str, tmp_path: Path) -> None:
    it = for_cuda(FILTERS[name])
    for outputs in emulated(it, tmp_path, 1):
        assert_close(outputs, it.want)


def test_what_lies_beside_an_image_is_no_term_whatever_the_filter(tmp_path: Path) -> None:
    weight = randn(3, 1, 3, 3)
    weight[1, 0, 0, 0] = math.inf
    it = for_cuda((depthwise(padding=1), (IMAGES.abs() + 1, weight)))
    (outputs,) = emulated(it, tmp_path, 1)
    (got,) = outputs
    assert not got.isnan().any()
    assert got[:, 1, 1:, 1:].isinf().all() and got[:, 1, 0].isfinite().all()


TILED: dict[str, Case] = {
    **{n: CASES[n] for n in ("box", "box, cut windows", "large maxima with holes")},
    "sharing rows": (lambda x: F.max_pool2d(x, (3, 4), stride=(1, 2), padding=(1, 2)), (holes(randn(2, 3, 24, 32)),)),
    "images": (lambda x, w: F.conv2d(x, w, padding=1, groups=3), (randn(2, 3, 24, 32), randn(3, 1, 3, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", TILED)
def test_tiles_of_rows_give_what_eager_gives_where_rows_are_left_over(
    name: str, tmp_path: Path
) -> None:
    it = for_cuda(TILED[name])
    first = it.analysis.schedules()[0].parameters(0)
    assert first["rows"] and len(it.analysis.kernels) == 1
    made = api.generate(it.analysis, Schedule.of({**first, "rows": 3}))
    assert isinstance(made, Candidate), made
    assert_close(cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path), it.want)


def test_a_tile_reads_what_its_results_share_once() -> None:
    it = for_cuda(TILED["images"])
    first = it.analysis.schedules()[0].parameters(0)
    made = api.generate(it.analysis, Schedule.of({**first, "rows": 4, "vector": 4}))
    assert isinstance(made, Candidate), made
    kernel = made.source[made.source.index('extern "C"') :]
    inside = kernel[: kernel.index("} else {")]
    assert inside.count("ca::load<4>") == 6 and inside.count("ca::widen(") == 2 * 6 + 9
