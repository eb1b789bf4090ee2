"""Sums of products with few columns, in registers: what the emulator runs is what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, beginning_with, holes, randn, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.skinny.match import skinny_loops_of
from cuda_agent_backend.codegen.cuda.gemm.skinny.schedules import SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "convolution, bias and ReLU": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 8, 13, 11), randn(3, 8, 3, 3), randn(3)),
    ),
    "without padding": (F.conv2d, (randn(2, 7, 9, 12), randn(5, 7, 3, 2))),
    "strided and dilated": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=2, dilation=2), (randn(2, 5, 17, 15), randn(6, 5, 3, 3)),
    ),
    "one dimension": (lambda x, w: F.conv1d(x, w, padding=3), (randn(3, 12, 50), randn(4, 12, 7))),
    "three dimensions": (
        lambda *a: F.conv3d(*a, padding=1).sigmoid(), (randn(2, 5, 6, 7, 5), randn(2, 5, 3, 3, 3), randn(2)),
    ),
    "pointwise": (F.conv2d, (randn(2, 24, 8, 12), randn(4, 24, 1, 1))),
    "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), (randn(2, 16, 9, 9), randn(12, 4, 3, 3))),
    "more factors than shared memory takes at once": (
        lambda x, w: F.conv2d(x, w, padding=1), (randn(1, 150, 6, 7), randn(8, 150, 3, 3)),
    ),
    "transposed, phases by themselves": (
        lambda *a: F.conv_transpose2d(*a, stride=2, padding=1).tanh(), (randn(2, 9, 7, 6), randn(9, 6, 4, 4), randn(6)),
    ),
    "transposed, phases with other taps": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (randn(2, 9, 7, 6), randn(9, 3, 3, 3)),
    ),
    "transposed, channel by channel": (
        lambda *a: F.conv_transpose2d(*a, stride=2, padding=1, groups=10),
        (randn(3, 10, 7, 6), randn(10, 1, 4, 4), randn(10)),
    ),
    "transposed, infinities": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        (holes(randn(2, 4, 7, 6)), holes(randn(4, 4, 4, 4))),
    ),
    "infinities": (lambda x, w: F.conv2d(x, w, padding=1), (holes(randn(2, 4, 7, 6)), holes(randn(4, 4, 3, 3)))),
}  # fmt: skip


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return sample(function, *inputs, target="cuda")


def with_rows(it: Sample, rows: int) -> Schedule:
    return beginning_with({"sketch": SKETCH, "rows": rows, "threads": 64}, it, DEVICE)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, rows: int, tmp_path: Path) -> None:
    it = case(name)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, with_rows(it, rows), DEVICE)
    outputs = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    function, inputs = CASES[name]
    want = function(
        *(x.double() for x in inputs)
    ).float()  # float32's leaves out the zeros beside an image
    torch.testing.assert_close(outputs[0], want, rtol=1e-5, atol=4e-5, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_it_is_tried_before_tiles_for_tensor_cores(name: str) -> None:
    it = case(name)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    sketches = [s.parameters(0)["sketch"] for s in found]
    assert sketches[0] == SKETCH and 1 <= sketches.count(SKETCH) <= 2


def test_taps_that_a_phase_lacks_are_not_multiplied() -> None:
    it = case("transposed, channel by channel")
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, with_rows(it, 1), DEVICE)
    assert source.count(" = fmaf(x[") == 16  # of nine taps by four phases


def test_neighbouring_rows_share_what_they_read() -> None:
    it = case("convolution, bias and ReLU")
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, with_rows(it, 4), DEVICE)
    assert "float x[18]" in source


def test_phases_are_written_together_where_they_are_neighbours() -> None:
    it = case("transposed, phases by themselves")
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, with_rows(it, 1), DEVICE)
    assert "constexpr int L = 2;" in source


@pytest.mark.parametrize(
    "inputs",
    [
        (randn(2, 8, 9, 9), randn(40, 8, 3, 3)),
        (randn(2, 8, 9, 9).to(memory_format=torch.channels_last), randn(4, 8, 3, 3)),
    ],
    ids=["many channels", "channels last"],
)
def test_others_are_left_to_tiles(inputs: tuple[Tensor, ...]) -> None:
    it = sample(F.conv2d, *inputs, target="cuda")
    found = gemm_of(it.analysis.kernels[0])
    assert found is not None and skinny_loops_of(found) is None


@pytest.mark.parametrize(
    "change", [{"rows": 0}, {"rows": 64}, {"threads": 2048}, {"columns": 8}, {"rows": "all"}]
)
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int | str]) -> None:
    it = case("without padding")
    schedule = Schedule.of({**with_rows(it, 1).parameters(0), **change})
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
