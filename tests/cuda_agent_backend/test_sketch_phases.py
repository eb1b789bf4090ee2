"""Transposed convolutions whose blocks have all phases of a box: what the emulator runs is what eager computes."""

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
from cuda_agent_backend.codegen.cuda.conv.transposed.match import SubPixelPhases, phases_of
from cuda_agent_backend.codegen.cuda.conv.transposed.writer import SKETCH, sub_pixel_steps
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.toolchain import Missing, find_cuda

pytestmark = pytest.mark.usefixtures("plain_layouts")


CASES: dict[str, Case] = {
    "three dimensions, a bias": (
        lambda *a: F.conv_transpose3d(*a, stride=2, padding=1, output_padding=1),
        (randn(2, 16, 2, 3, 5), randn(16, 20, 3, 3, 3), randn(20)),
    ),
    "two dimensions": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=2, output_padding=1).tanh(),
        (randn(2, 24, 7, 9), randn(24, 40, 5, 5)),
    ),
    "one direction": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(1, 4), padding=(1, 2)),
        (randn(2, 20, 5, 6), randn(20, 17, 3, 8)),
    ),
    "the other direction": (
        lambda x, w: F.gelu(F.conv_transpose2d(x, w, stride=(2, 1), output_padding=(1, 0))),
        (randn(2, 17, 5, 6), randn(17, 16, 3, 3)),
    ),
    "one dimension, a residual": (
        lambda x, w, y: F.conv_transpose1d(x, w, stride=8, padding=4) + y,
        (randn(2, 17, 21), randn(17, 24, 16), randn(2, 24, 168)),
    ),
    "by three, in groups": (
        lambda x, w: F.conv_transpose1d(x, w, stride=3, groups=2), (randn(2, 36, 19), randn(36, 19, 4)),
    ),
    "no overlap": (
        lambda *a: F.conv_transpose3d(*a, stride=(2, 3, 3)),
        (randn(2, 20, 2, 3, 5), randn(20, 17, 2, 3, 3), randn(17)),
    ),
    "all phases with all taps": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3)), (randn(2, 18, 4, 6), randn(18, 16, 4, 3)),
    ),
    "channels last after": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1).permute(0, 2, 3, 1).contiguous(),
        (randn(2, 16, 5, 7), randn(16, 24, 3, 3)),
    ),
    "transposed, infinities": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (holes(randn(2, 24, 7, 9)), holes(randn(24, 18, 3, 3))),
    ),
}  # fmt: skip
SIZES: tuple[dict[str, Parameter], ...] = (
    {"tile_n": 16, "warp_m": 32, "warp_n": 8},
    {"tile_n": 24, "warp_m": 16, "warp_n": 24},
)
BOXES = {1: ("1x32", "2x12"), 2: ("1x4x8", "2x3x5"), 3: ("1x2x4x8", "1x1x3x6")}


BOXED = Boxed(SKETCH, CASES)
WAYS = [(name, number % 2) for number, name in enumerate(CASES)]
"""Each case with one of the boxes and tiles; those that differ most with the other as well."""
WAYS += [("three dimensions, a bias", 1), ("one dimension, a residual", 1)]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, way: int, tmp_path: Path) -> None:
    box = BOXES[CASES[name][1][0].dim() - 2][way]
    schedule = BOXED.under(BOXED.case(name), box, SIZES[way])
    BOXED.assert_as_accurate_as_eager(name, schedule, tmp_path)


@pytest.mark.parametrize("name", ["three dimensions, a bias", "one dimension, a residual"])
def test_numbers_of_two_parts_err_less_than_tf32(name: str, tmp_path: Path) -> None:
    first = BOXED.proposed(BOXED.case(name), TF32)[0]
    assert first.parameters(0)["products"] == 3
    BOXED.assert_errs_less_than_tf32(name, first, tmp_path)


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
        (F.conv2d, (randn(2, 16, 9, 9), randn(24, 16, 3, 3))),
        (F.conv_transpose2d, (randn(2, 16, 9, 9), randn(16, 24, 3, 3))),
        (
            lambda x, w: F.conv_transpose1d(x, w, stride=20),
            (randn(2, 16, 9), randn(16, 24, 21)),
        ),
        (torch.matmul, (randn(64, 64), randn(64, 64))),
    ],
    ids=["a convolution", "no stride", "many phases", "a product"],
)
def test_others_are_left_to_other_sketches(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = sample(function, *inputs, target="cuda")
    assert BOXED.proposed(it, DEVICE) == []
    with pytest.raises(Unsupported, match=r"phases|product"):
        cuda.emit(it.analysis.region, it.analysis.kernels, BOXED.under(it, "1x8", SIZES[0]), DEVICE)


@pytest.mark.parametrize(
    "change",
    [
        {"box": "4x8"}, {"box": "1x0x8"}, {"box": 8}, {"box": "2x512x512"}, {"tile_n": 20}, {"warp_m": 0},
        {"warp_n": "all"}, {"depth": 16}, {"warp_m": 256},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int | str]) -> None:
    it = BOXED.case("one direction")
    schedule = Schedule.of({**BOXED.under(it, "1x4x8", SIZES[0]).parameters(0), **change})
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("device", [DEVICE, TF32], ids=["exact", "TF32"])
def test_sums_of_all_phases_stay_in_registers(device: cuda.DeviceFacts, tmp_path: Path) -> None:
    def upsampled(*a: Tensor) -> Tensor:
        return F.conv_transpose3d(*a, stride=2, padding=1, output_padding=1)

    it = sample(upsampled, randn(1, 32, 8, 16, 16), randn(32, 32, 3, 3, 3), target="cuda")
    spilled = spilled_bytes(it, BOXED.proposed(it, device)[:1], device, tmp_path)
    assert max(spilled) < 8 * 32  # half of a thread's 64 sums


def found_in(name: str) -> SubPixelPhases | None:
    (kernel, *_) = BOXED.case(name).analysis.kernels
    found = gemm_of(kernel)
    return phases_of(kernel, found) if found is not None else None


def test_phases_that_no_tap_is_lacking_for_are_known_by_where_results_go() -> None:
    phases = found_in("no overlap")
    assert phases is not None and (phases.count, phases.near, phases.outputs) == (18, 3, 17)
    assert set(phases.taps) == {(0,)}


def test_only_taps_that_a_phase_has_are_multiplied() -> None:
    phases = found_in("three dimensions, a bias")
    assert phases is not None and (phases.count, phases.near) == (8, 2)
    assert sorted(map(len, phases.taps)) == [1, 2, 2, 2, 4, 4, 4, 8]  # 27 of 64
    assert sub_pixel_steps(phases) == 27


def test_two_taps_share_a_step_where_few_channels_are_left() -> None:
    phases = found_in("two dimensions")
    assert phases is not None and phases.halo.channel[1] == 24
    assert len(phases.visits) == 25 and sub_pixel_steps(phases) == 25 + 5 + 3 + 3 + 2
