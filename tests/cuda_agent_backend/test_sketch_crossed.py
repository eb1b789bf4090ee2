"""Windows along an image with channels stored together: what the emulator runs is what eager computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch._inductor import config as inductor_config
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.cuda.channels_last.match import SKETCH
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.candidate import Candidate


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def holes(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[0, 1, 5, 7], x[1, 2, 10, 3], x[1, 0] = math.nan, math.inf, -math.inf
    return x


def depthwise(**how: Any) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        convolution = (F.conv2d, F.conv3d)[x.dim() - 4]
        return convolution(x, w, *bias, groups=x.shape[1], **how)

    return run


IMAGES, VOLUMES = randn(2, 40, 13, 24), randn(2, 12, 5, 9, 10)
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "five by five, a bias": (depthwise(padding=2), (IMAGES, randn(40, 1, 5, 5), randn(40))),
    "odd lines, odd channels": (depthwise(padding=1), (randn(2, 11, 9, 23), randn(11, 1, 3, 3))),
    "by steps": (depthwise(padding=1, stride=2), (randn(1, 16, 17, 36), randn(16, 1, 3, 3))),
    "dilated": (depthwise(padding=4, dilation=2), (randn(1, 36, 12, 22), randn(36, 1, 5, 5))),
    "twice the channels": (depthwise(padding=1), (randn(1, 10, 9, 16), randn(20, 1, 3, 3))),
    "three by three": (depthwise(padding=1), (IMAGES, randn(40, 1, 3, 3), randn(40))),
    "halves": (depthwise(padding=1), (IMAGES.half(), randn(40, 1, 3, 3).half(), randn(40).half())),
    "without padding": (depthwise(), (IMAGES, randn(40, 1, 3, 3), randn(40))),
    "what is not finite": (depthwise(padding=1), (holes(randn(2, 9, 11, 20)), randn(9, 1, 3, 3))),
    "volumes": (depthwise(padding=1), (VOLUMES, randn(12, 1, 3, 3, 3))),
    "maxima": (lambda x: F.max_pool2d(x, 3, stride=1, padding=1), (holes(IMAGES),)),
}  # fmt: skip


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def for_cuda(case: Case, last: bool = True) -> Sample:
    """last: whether results are to be stored with their channels next to each other."""
    function, inputs = case
    with inductor_config.patch(comprehensive_padding=False):
        it = sample(function, *inputs)
    (spec,), (want,) = it.task.output_specs, it.want
    stride = channels_last(want).stride() if last else spec.stride
    task = dataclasses.replace(
        it.task, target="cuda", output_specs=(dataclasses.replace(spec, stride=stride),)
    )
    return dataclasses.replace(it, task=task)


def crossed(it: Sample) -> list[dict[str, Any]]:
    found = [s.parameters(0) for s in it.analysis.schedules() if len(s.kernels) == 1]
    return [dict(p) for p in found if p["sketch"] == SKETCH]


def assert_right(it: Sample, parameters: dict[str, Any], folder: Path) -> None:
    made = api.generate(it.analysis, Schedule.of(parameters))
    assert isinstance(made, Candidate), made
    (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, folder)
    assert got.stride()[1] == 1
    loose = 2e-3 if got.dtype == torch.float16 else 1e-4
    torch.testing.assert_close(got, it.want[0], rtol=loose, atol=loose, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_an_emulator_computes_what_eager_does(name: str, tmp_path: Path) -> None:
    it = for_cuda(CASES[name])
    assert_right(it, crossed(it)[0], tmp_path)


@pytest.mark.parametrize("number", range(1, 5))
def test_all_tiles_are_right(number: int, tmp_path: Path) -> None:
    it = for_cuda(CASES["three by three"])
    assert_right(it, crossed(it)[number], tmp_path)


@pytest.mark.parametrize(("vector", "deep"), [(2, 24), (1, 8), (4, 12)])
def test_other_tiles_are_right(vector: int, deep: int, tmp_path: Path) -> None:
    it = for_cuda(CASES["three by three"])
    assert_right(it, {"sketch": SKETCH, "vector": vector, "rows": 2, "deep": deep}, tmp_path)


@pytest.mark.parametrize(
    "changed", [{"vector": 3}, {"rows": 3}, {"deep": 30}, {"deep": 4096}, {"wide": 1}]
)
def test_tiles_that_do_not_fit_are_refused(changed: dict[str, int]) -> None:
    it = for_cuda(CASES["three by three"])
    made = api.generate(it.analysis, Schedule.of({**crossed(it)[0], **changed}))
    assert isinstance(made, api.NotCovered)


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=1, groups=40)


@pytest.mark.parametrize(
    ("case", "last"),
    [
        ((convolved, (IMAGES, randn(40, 1, 3, 3))), False),
        ((convolved, (channels_last(IMAGES), randn(40, 1, 3, 3))), True),
        ((lambda x, y: F.max_pool2d(x, 3, 1, 1) + y, (IMAGES, channels_last(IMAGES))), True),
        ((lambda x: x + 1, (IMAGES,)), True),
    ],
    ids=["as it lies", "channels last", "with an operand along the channels", "no windows"],
)  # fmt: skip
def test_others_are_left_to_other_sketches(case: Case, last: bool) -> None:
    assert not crossed(for_cuda(case, last))
