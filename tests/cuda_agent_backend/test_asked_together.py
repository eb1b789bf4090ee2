"""Rows of which a thread asks for several chunks together before its work on them (``ahead``), run by an emulator."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample
from sketch_kit import on_cuda as made
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.rows.loops import RUN
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = cuda.DeviceFacts()
ROW: dict[str, Parameter] = {
    "sketch": "row", "vector": 4, "team": 32, "across": 4, "segments": 1, "exchange": "block",
    "keep": "none", "unroll": 4, "once": 1, "ahead": 4,
}  # fmt: skip


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def likely(*shape: int) -> Tensor:
    return torch.sigmoid(randn(*shape))


def weighted(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights)


def log_gap(depth: Tensor, wanted: Tensor) -> Tensor:
    gap = torch.log(depth) - torch.log(wanted)
    return gap.square().mean(dim=1) - 0.85 * gap.mean(dim=1).square()


def overlap(logits: Tensor, wanted: Tensor) -> Tensor:
    share = torch.sigmoid(logits)
    return (2 * (share * wanted).sum(dim=1) + 1) / (share.sum(dim=1) + wanted.sum(dim=1) + 1)


def largest_ratio(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    ratio = a / b
    return ratio.amax(dim=1), ratio.argmax(dim=1)


WEIGHTED = (weighted, (randn(37, 60), likely(37, 60), likely(60) * 4))
DEPTHS = (log_gap, (likely(9, 1000) + 0.1, likely(9, 1000) + 0.1))
LONG = (log_gap, (likely(2, 9000) + 0.1, likely(2, 9000) + 0.1))
Case = tuple[Callable[..., Tensor | tuple[Tensor, ...]], tuple[Tensor, ...], dict[str, Parameter]]
CASES: dict[str, Case] = {
    "one row in uneven parts": (*WEIGHTED, {"exchange": "split", "segments": 7, "across": 1}),
    "one row in even parts": (*WEIGHTED, {"exchange": "split", "segments": 3, "ahead": 2, "across": 1}),
    "rows of a few turns": (*DEPTHS, {"ahead": 2}),
    "all of a row at once": (*DEPTHS, {"ahead": 8}),
    "a number that no run holds a whole number of": (*LONG, {"ahead": 3, "vector": 1, "across": 1, "team": 64}),
    "runs": (*LONG, {"ahead": 4, "vector": 1, "across": 1}),
    "parts of a cluster": (*DEPTHS, {"exchange": "cluster", "segments": 3, "across": 1, "vector": 2}),
    "two operands without a branch": (overlap, (randn(6, 500), likely(6, 500)), {"ahead": 2}),
    "places": (largest_ratio, (randn(9, 300), likely(9, 300) + 1), {"ahead": 2}),
}  # fmt: skip


def emulated(it: Sample, folder: Path, change: dict[str, Parameter]) -> list[Tensor]:
    assert len(it.analysis.kernels) == 1
    source, plan = cuda.emit(
        it.analysis.region, it.analysis.kernels, Schedule.of(ROW | change), DEVICE
    )
    return cuda_emulator.run(source, plan, it.inputs, folder)


@pytest.mark.parametrize("name", CASES)
def test_results_are_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    function, inputs, change = CASES[name]
    it = made(function, *inputs)
    exact = made(function, *(x.double() for x in inputs)).want
    for got, near, want in zip(emulated(it, tmp_path, change), it.want, exact, strict=True):
        if not want.is_floating_point():
            assert torch.equal(got, near)
            continue
        error, eagers = ((x.double() - want).abs().max() for x in (got, near))
        assert error <= 2 * eagers + 1e-6 * want.abs().max()


@pytest.mark.parametrize("special", [math.inf, math.nan])
def test_what_is_not_finite_is_as_in_eager(special: float, tmp_path: Path) -> None:
    function, (depth, wanted) = DEPTHS
    depth = depth.clone()
    depth[3, 7], depth[5, 999] = special, special
    it = made(function, depth, wanted)
    torch.testing.assert_close(emulated(it, tmp_path, {})[0], it.want[0], equal_nan=True)


def test_runs_are_longer_than_what_is_asked_for() -> None:
    """Else the cases above would not meet what ends a run."""
    assert LONG[1][0].shape[1] // 64 > 2 * RUN


@pytest.mark.parametrize(
    "change", [{"keep": "registers"}, {"lanes": "outer", "team": 1, "across": 32, "vector": 1}]
)
def test_what_is_kept_or_lies_in_columns_is_refused(change: dict[str, Parameter]) -> None:
    it = made(*(DEPTHS[0], *DEPTHS[1]))
    with pytest.raises(Unsupported, match="asked for together"):
        cuda.emit(it.analysis.region, it.analysis.kernels, Schedule.of(ROW | change), DEVICE)


def large(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> list[Schedule]:
    """Schedules for inputs that hold no memory."""
    with torch.device("meta"):
        given = [torch.empty(shape) for shape in shapes]
    return made(function, *given).analysis.schedules(DEVICE)


def ahead(schedules: list[Schedule]) -> list[dict[str, Parameter]]:
    return [p for s in schedules if "ahead" in (p := s.parameters(0))]


def test_blocks_of_one_wave_are_offered_for_logarithms_of_large_rows() -> None:
    found = ahead(large(log_gap, (60, 476_000), (60, 476_000)))
    assert [(p["ahead"], p["segments"], p["exchange"]) for p in found[:2]] == [
        (2, 6, "cluster"),
        (4, 4, "cluster"),
    ]


def test_one_operand_without_a_branch_is_left_to_the_compiler() -> None:
    assert not ahead(large(lambda x: x.square().sum(dim=1), (60, 952_000)))


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_loads_are_apart_from_the_work_and_need_no_more_memory(tmp_path: Path) -> None:
    it = made(*(DEPTHS[0], *DEPTHS[1]))
    kernels = it.analysis.kernels
    source, plan = cuda.emit(it.analysis.region, kernels, Schedule.of(ROW), DEVICE)
    own = source[source.index('extern "C"') :]
    assert len(re.findall(r"ca::load\w*<L>\(m_", own)) == 2
    assert not re.search(r"ca::load\w*<L>\(m_", own[own.index("auto step") :])
    candidate = Candidate("cuda", "cuda", source, plan, "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled) and "0 bytes spill stores" in built.log
