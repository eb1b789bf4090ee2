"""Transposed convolutions whose blocks have all phases of a box: what the emulator runs is what eager computes."""

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
from cuda_agent_backend.sketch.cuda_phases import SKETCH, phased_steps
from cuda_agent_backend.sketch.phases import Phases, phases_of
from cuda_agent_backend.sketch.schedule import Parameter, Schedule
from cuda_agent_backend.sketch.ssa import Unsupported
from sandbox.candidate import Candidate
from sandbox.compile import Compiled, compile_candidate
from sandbox.toolchain import Missing, find_cuda

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
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


def case(name: str) -> Sample:
    function, inputs = CASES[name]
    return sample(function, *inputs, target="cuda")


def under(it: Sample, box: str, sizes: dict[str, Parameter]) -> Schedule:
    return beginning_with({"sketch": SKETCH, "box": box, **sizes}, it, DEVICE)


WAYS = [(name, number % 2) for number, name in enumerate(CASES)]
"""Each case with one of the boxes and tiles; those that differ most with the other as well."""
WAYS += [("three dimensions, a bias", 1), ("one dimension, a residual", 1)]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, way: int, tmp_path: Path) -> None:
    it = case(name)
    function, inputs = CASES[name]
    schedule = under(it, BOXES[inputs[0].dim() - 2][way], SIZES[way])
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    outputs = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    want = function(*(x.double() for x in inputs))
    torch.testing.assert_close(outputs[0], want.float(), rtol=1e-5, atol=4e-5, equal_nan=True)
    if want.isfinite().all():
        own, error = (float((x.double() - want).norm()) for x in (it.want[0], outputs[0]))
        assert error < 1.5 * own + 1e-7 * float(want.norm())


@pytest.mark.parametrize("name", ["three dimensions, a bias", "one dimension, a residual"])
def test_numbers_of_two_parts_err_less_than_tf32(name: str, tmp_path: Path) -> None:
    it = case(name)
    function, inputs = CASES[name]
    allowed = replace(DEVICE, tf32=("conv",))
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, allowed)
    schedule = next(s for s in found if s.parameters(0)["sketch"] == SKETCH)
    assert schedule.parameters(0)["products"] == 3
    outputs = cuda_emulator.run(
        *cuda.emit(it.analysis.region, it.analysis.kernels, schedule, allowed), it.inputs, tmp_path
    )
    want = function(*(x.double() for x in inputs))
    error = float((outputs[0].double() - want).norm() / want.norm())
    assert 2**-21 < error < 2**-15


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
            assert [step.kernel for step in plan.steps][:2] == ["k0_weights", "k0"]


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
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    assert not any(s.parameters(0)["sketch"] == SKETCH for s in found)
    with pytest.raises(Unsupported, match=r"phases|product"):
        cuda.emit(it.analysis.region, it.analysis.kernels, under(it, "1x8", SIZES[0]), DEVICE)


@pytest.mark.parametrize(
    "change",
    [
        {"box": "4x8"}, {"box": "1x0x8"}, {"box": 8}, {"box": "2x512x512"}, {"tile_n": 20}, {"warp_m": 0},
        {"warp_n": "all"}, {"depth": 16}, {"warp_m": 256},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_says_so(change: dict[str, int | str]) -> None:
    it = case("one direction")
    schedule = Schedule.of({**under(it, "1x4x8", SIZES[0]).parameters(0), **change})
    with pytest.raises(Unsupported, match=r".+"):
        cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_sums_of_all_phases_stay_in_registers(tmp_path: Path) -> None:
    def upsampled(*a: Tensor) -> Tensor:
        return F.conv_transpose3d(*a, stride=2, padding=1, output_padding=1)

    it = sample(upsampled, randn(1, 32, 8, 16, 16), randn(32, 32, 3, 3, 3), target="cuda")
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)
    first = next(s for s in found if s.parameters(0)["sketch"] == SKETCH)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, first, DEVICE)
    candidate = Candidate("cuda", "cuda", source, plan, "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert built.facts["k0"]["spill_store_bytes"] < 8 * 32  # half of a thread's 64 sums


def found_in(name: str) -> Phases | None:
    (kernel, *_) = case(name).analysis.kernels
    found = contraction_of(kernel)
    return phases_of(kernel, found) if found is not None else None


def test_phases_that_no_tap_is_lacking_for_are_known_by_where_results_go() -> None:
    phases = found_in("no overlap")
    assert phases is not None and (phases.count, phases.near, phases.outputs) == (18, 3, 17)
    assert set(phases.taps) == {(0,)}


def test_only_taps_that_a_phase_has_are_multiplied() -> None:
    phases = found_in("three dimensions, a bias")
    assert phases is not None and (phases.count, phases.near) == (8, 2)
    assert sorted(map(len, phases.taps)) == [1, 2, 2, 2, 4, 4, 4, 8]  # 27 of 64
    assert phased_steps(phases) == 27


def test_two_taps_share_a_step_where_few_channels_are_left() -> None:
    phases = found_in("two dimensions")
    assert phases is not None and phases.halo.channel[1] == 24
    assert len(phases.visits) == 25 and phased_steps(phases) == 25 + 5 + 3 + 3 + 2
