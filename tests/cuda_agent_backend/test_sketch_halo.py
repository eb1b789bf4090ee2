"""Convolutions whose blocks copy and split a box of the image once: what the emulator runs is what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from boxed_kit import DEVICE, TF32, Boxed, Case, spilled_bytes
from sketch_kit import holes, randn, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.conv.halo.match import halo_of
from cuda_agent_backend.codegen.cuda.conv.halo.sizes import steps_of
from cuda_agent_backend.codegen.cuda.conv.halo.writer import SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.toolchain import Missing, find_cuda

pytestmark = pytest.mark.usefixtures("plain_layouts")


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


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


BOXED = Boxed(SKETCH, CASES)
WAYS = [(name, number % 2) for number, name in enumerate(CASES)]
"""Each case with one of the boxes and tiles; those that differ most with the other as well."""
WAYS += [("convolution, bias and ReLU", 1), ("transposed", 0)]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, way: int, tmp_path: Path) -> None:
    box = BOXES[CASES[name][1][0].dim() - 2][way]
    schedule = BOXED.under(BOXED.case(name), box, SIZES[way])
    BOXED.assert_as_accurate_as_eager(name, schedule, tmp_path)


@pytest.mark.parametrize(
    "name", ["convolution, bias and ReLU", "transposed", "infinities", "groups"]
)
def test_numbers_of_two_parts_err_less_than_tf32(name: str, tmp_path: Path) -> None:
    box = BOXES[CASES[name][1][0].dim() - 2][0]
    schedule = BOXED.under(BOXED.case(name), box, {**SIZES[0], "products": 3})
    BOXED.assert_errs_less_than_tf32(name, schedule, tmp_path)


def test_where_tf32_is_allowed_most_boxes_have_numbers_of_two_parts() -> None:
    it = BOXED.case("convolution, bias and ReLU")
    exact, near = (
        [s.parameters(0).get("products", 6) for s in BOXED.proposed(it, device)]
        for device in (DEVICE, TF32)
    )
    assert exact and set(exact) == {6}
    assert near[:2] == [3, 6] and near.count(6) == 1 and len(near) > 2


@pytest.mark.parametrize("products", [1, 2, "3", True])
def test_other_numbers_of_products_are_refused(products: Parameter) -> None:
    it = BOXED.case("convolution, bias and ReLU")
    schedule = BOXED.under(it, BOXES[2][0], {**SIZES[0], "products": products})
    with pytest.raises(Unsupported, match="products"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_it_takes_turns_with_tiles_for_any_product(name: str) -> None:
    it = BOXED.case(name)
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert {SKETCH, "contract"} <= {s.parameters(0)["sketch"] for s in found[:4]}


@pytest.mark.parametrize("device", [DEVICE, TF32], ids=["exact", "TF32"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_proposed_can_be_written(name: str, device: cuda.DeviceFacts) -> None:
    BOXED.assert_is_written(name, device)


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
    assert BOXED.proposed(it, DEVICE) == []


@pytest.mark.parametrize(
    "change",
    [
        {"box": "4x8"}, {"box": "1x0x8"}, {"box": 8}, {"box": "2x512x512"}, {"tile_n": 20}, {"warp_m": 0},
        {"warp_n": "all"}, {"depth": 16},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int | str]) -> None:
    it = BOXED.case("without padding, odd")
    schedule = Schedule.of({**BOXED.under(it, "1x4x8", SIZES[0]).parameters(0), **change})
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


LARGE: dict[str, Case] = {
    "image": (lambda *a: F.relu(F.conv2d(*a, padding=1)), (randn(2, 64, 56, 56), randn(128, 64, 3, 3), randn(128))),
    "volume": (F.conv_transpose3d, (randn(1, 36, 20, 20, 36), randn(36, 20, 3, 3, 3))),
}  # fmt: skip


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("device", [DEVICE, TF32], ids=["exact", "TF32"])
@pytest.mark.parametrize("name", LARGE)
def test_what_is_proposed_compiles_without_spilling(
    name: str, device: cuda.DeviceFacts, tmp_path: Path
) -> None:
    function, inputs = LARGE[name]
    it = sample(function, *inputs, target="cuda")
    first = BOXED.proposed(it, device)[:2]
    assert set(spilled_bytes(it, first, device, tmp_path)) == {0}


def test_two_taps_share_a_step_where_few_channels_are_left() -> None:
    found = gemm_of(BOXED.case("transposed").analysis.kernels[0])
    halo = halo_of(found) if found is not None else None
    assert halo is not None and halo.channel[1] == 36 and steps_of(halo) == 2 * 27 + 14
