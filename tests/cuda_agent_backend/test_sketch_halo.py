"""Convolutions whose blocks copy and split a box of the image once: what the emulator runs is what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, beginning_with, holes, randn, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.sketch import cuda
from cuda_agent_backend.sketch.contraction import contraction_of
from cuda_agent_backend.sketch.cuda_halo import SKETCH, steps_of
from cuda_agent_backend.sketch.halo import halo_of
from cuda_agent_backend.sketch.schedule import Parameter, Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.candidate import Candidate
from sandbox.compile import Compiled, compile_candidate
from sandbox.toolchain import Missing, find_cuda

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "convolution, bias and ReLU": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 32, 13, 20), randn(24, 32, 3, 3), randn(24)),
    ),
    "without padding, odd": (F.conv2d, (randn(2, 19, 9, 15), randn(23, 19, 3, 2))),
    "dilated, a residual": (
        lambda x, w, y: F.gelu(F.conv2d(x, w, padding=(4, 2), dilation=(2, 3)) + y),
        (randn(2, 16, 11, 17), randn(40, 16, 3, 3), randn(2, 40, 15, 15)),
    ),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (randn(2, 24, 17, 16), randn(20, 24, 3, 3))),
    "one line of taps": (lambda x, w: F.conv2d(x, w, padding=(0, 2)), (randn(2, 18, 6, 20), randn(17, 18, 1, 5))),
    "one dimension": (
        lambda x, w: F.conv1d(x, w, padding=6, dilation=2), (randn(3, 20, 70), randn(33, 20, 7)),
    ),
    "three dimensions": (
        lambda *a: F.conv3d(*a, padding=1).sigmoid(), (randn(2, 12, 3, 7, 9), randn(18, 12, 3, 3, 3), randn(18)),
    ),
    "transposed": (F.conv_transpose3d, (randn(2, 36, 3, 5, 6), randn(36, 20, 3, 3, 3))),
    "transposed and dilated": (
        lambda x, w: F.conv_transpose2d(x, w, padding=1, dilation=2).tanh(), (randn(2, 17, 7, 9), randn(17, 16, 3, 3)),
    ),
    "channels last": (
        lambda *a: F.relu(F.conv2d(*a, padding=1)), (last(randn(2, 36, 9, 11)), last(randn(20, 36, 3, 3)), randn(20)),
    ),
    "channels last, odd": (F.conv2d, (last(randn(2, 19, 9, 11)), randn(18, 19, 3, 2))),
    "channels last after": (
        lambda x, w: F.conv2d(x, w, stride=2).permute(0, 2, 3, 1).contiguous(),
        (randn(2, 16, 13, 15), randn(20, 16, 3, 3)),
    ),
    "groups": (
        lambda *a: F.conv2d(*a, padding=1, groups=3).sigmoid(), (randn(2, 36, 9, 11), randn(54, 12, 3, 3), randn(54)),
    ),
    "few channels, of which each is a tap": (
        lambda x, w: F.conv2d(x, w, stride=3), (randn(2, 4, 16, 24), randn(17, 4, 5, 9)),
    ),
    "infinities": (lambda x, w: F.conv2d(x, w, padding=1), (holes(randn(2, 16, 7, 9)), holes(randn(18, 16, 3, 3)))),
    "transposed, infinities": (
        F.conv_transpose2d, (holes(randn(2, 24, 7, 9)), holes(randn(24, 18, 3, 3))),
    ),
}  # fmt: skip
SIZES: tuple[dict[str, Parameter], ...] = (
    {"tile_n": 32, "warp_m": 32, "warp_n": 16},
    {"tile_n": 24, "warp_m": 16, "warp_n": 24},
)
BOXES = {1: ("1x32", "2x24"), 2: ("1x4x8", "2x3x7"), 3: ("1x2x4x8", "1x1x3x12")}


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return sample(function, *inputs, target="cuda")


def under(it: Sample, box: str, sizes: dict[str, Parameter]) -> Schedule:
    return beginning_with({"sketch": SKETCH, "box": box, **sizes}, it, DEVICE)


WAYS = [(name, number % 2) for number, name in enumerate(CASES)]
"""Each case with one of the boxes and tiles; those that differ most with the other as well."""
WAYS += [("convolution, bias and ReLU", 1), ("transposed", 0)]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, way: int, tmp_path: Path) -> None:
    it = case(name)
    function, inputs = CASES[name]
    schedule = under(it, BOXES[inputs[0].dim() - 2][way], SIZES[way])
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    outputs = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    want = function(*(x.double() for x in inputs))  # float32's leaves out the zeros beside an image
    torch.testing.assert_close(outputs[0], want.float(), rtol=1e-5, atol=4e-5, equal_nan=True)
    if want.isfinite().all():
        own, error = (float((x.double() - want).norm()) for x in (it.want[0], outputs[0]))
        assert error < 1.5 * own + 1e-7 * float(want.norm())


@pytest.mark.parametrize(
    "name", ["convolution, bias and ReLU", "transposed", "infinities", "groups"]
)
def test_numbers_of_two_parts_err_less_than_tf32(name: str, tmp_path: Path) -> None:
    """But more than float32: an operand has 16 bits, TF32's 11."""
    it = case(name)
    function, inputs = CASES[name]
    schedule = under(it, BOXES[inputs[0].dim() - 2][0], {**SIZES[0], "products": 3})
    outputs = cuda_emulator.run(
        *cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE), it.inputs, tmp_path
    )
    want = function(*(x.double() for x in inputs))
    torch.testing.assert_close(outputs[0], want.float(), rtol=2e-4, atol=1e-3, equal_nan=True)
    if want.isfinite().all():
        error = float((outputs[0].double() - want).norm() / want.norm())
        assert 2**-21 < error < 2**-15


def test_where_tf32_is_allowed_most_boxes_have_numbers_of_two_parts() -> None:
    it = case("convolution, bias and ReLU")
    allowed = replace(DEVICE, tf32=("conv",))

    def products(device: cuda.DeviceFacts) -> list[Parameter]:
        found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
        boxed = (dict(s.parameters(0)) for s in found if s.parameters(0)["sketch"] == SKETCH)
        return [own.get("products", 6) for own in boxed]

    assert products(DEVICE) and set(products(DEVICE)) == {6}
    assert products(allowed)[:2] == [3, 6] and products(allowed).count(6) == 1
    assert len(products(allowed)) > 2


@pytest.mark.parametrize("products", [1, 2, "3", True])
def test_other_numbers_of_products_are_refused(products: Parameter) -> None:
    it = case("convolution, bias and ReLU")
    schedule = under(it, BOXES[2][0], {**SIZES[0], "products": products})
    with pytest.raises(Unsupported, match="products"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_it_takes_turns_with_tiles_for_any_product(name: str) -> None:
    it = case(name)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert {SKETCH, "contract"} <= {s.parameters(0)["sketch"] for s in found[:4]}


@pytest.mark.parametrize("name", CASES)
def test_what_is_proposed_can_be_written(name: str) -> None:
    it = case(name)
    for schedule in cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE):
        if schedule.parameters(0)["sketch"] == SKETCH:
            _, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
            assert [step.kernel for step in plan.steps] == ["k0_weights", "k0"]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (F.conv2d, (randn(2, 16, 9, 9), randn(24, 16, 1, 1))),
        (F.conv2d, (randn(2, 4, 9, 9), randn(24, 4, 3, 3))),
        (
            lambda x, w: F.conv_transpose2d(x, w, stride=2),
            (randn(2, 16, 9, 9), randn(16, 24, 3, 3)),
        ),
        (torch.matmul, (randn(64, 64), randn(64, 64))),
    ],
    ids=["one tap", "few channels", "phases", "a product"],
)
def test_others_are_left_to_other_sketches(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = sample(function, *inputs, target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert not any(s.parameters(0)["sketch"] == SKETCH for s in found)


@pytest.mark.parametrize(
    "change",
    [
        {"box": "4x8"}, {"box": "1x0x8"}, {"box": 8}, {"box": "2x512x512"}, {"tile_n": 20}, {"warp_m": 0},
        {"warp_n": "all"}, {"depth": 16},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int | str]) -> None:
    it = case("without padding, odd")
    schedule = Schedule.of({**under(it, "1x4x8", SIZES[0]).parameters(0), **change})
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


LARGE: dict[str, Case] = {
    "image": (lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 64, 56, 56), randn(128, 64, 3, 3), randn(128))),
    "volume": (F.conv_transpose3d, (randn(1, 36, 20, 20, 36), randn(36, 20, 3, 3, 3))),
}  # fmt: skip


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", LARGE)
def test_what_is_proposed_compiles_without_spilling(name: str, tmp_path: Path) -> None:
    function, inputs = LARGE[name]
    it = sample(function, *inputs, target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    for schedule in [s for s in found if s.parameters(0)["sketch"] == SKETCH][:2]:
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
        candidate = Candidate("cuda", "cuda", source, plan, "sketch")
        built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())


def test_two_taps_share_a_step_where_few_channels_are_left() -> None:
    found = contraction_of(case("transposed").analysis.kernels[0])
    halo = halo_of(found) if found is not None else None
    assert halo is not None and halo.channel[1] == 36 and steps_of(halo) == 2 * 27 + 14
