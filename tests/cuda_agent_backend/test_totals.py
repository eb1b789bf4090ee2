"""Rows that are made one number of, on cuda: recognised, and right, as an emulator runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample
from sketch_kit import on_cuda as made
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.rows.loss import schedules as cuda_total_schedules
from cuda_agent_backend.codegen.cuda.rows.loss import writer as cuda_totals
from cuda_agent_backend.codegen.cuda.rows.loss.match import loss_reduction_of
from cuda_agent_backend.codegen.cuda.rows.loss.writer import SKETCH
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = cuda.DeviceFacts()
ROWS: dict[str, Parameter] = {
    "sketch": SKETCH, "vector": 4, "team": 32, "across": 4, "segments": 1, "exchange": "block",
    "keep": "none", "unroll": 2, "once": 1, "stay": 0,
}  # fmt: skip
COLUMNS: dict[str, Parameter] = {
    "sketch": SKETCH, "lanes": "outer", "vector": 2, "team": 2, "across": 32, "segments": 1,
    "exchange": "block", "keep": "shared", "stages": 1, "unroll": 4, "once": 1, "stay": 0,
}  # fmt: skip


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def integers(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(most))


def by_cosine(left: Tensor, right: Tensor, targets: Tensor) -> Tensor:
    return F.cosine_embedding_loss(left, right, targets, margin=0.2)


def by_three_distances(anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return F.triplet_margin_loss(anchor, positive, negative, 0.7, swap=True)


def focal(logits: Tensor, targets: Tensor) -> Tensor:
    chosen = F.log_softmax(logits, dim=1).gather(1, targets[:, None]).squeeze(1)
    return (-((1 - chosen.exp()) ** 2.0) * chosen).mean()


def largest_norm(x: Tensor) -> Tensor:
    return x.square().sum(dim=1).sqrt().amax()


def two_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    lengths = x.square().sum(dim=1)
    return lengths.sqrt().sum(), (lengths + 1).log().amin()


def with_lengths(x: Tensor) -> tuple[Tensor, Tensor]:
    lengths = x.square().sum(dim=1)
    return lengths, (lengths + 1).sqrt().mean()


def of_planes(x: Tensor, weights: Tensor) -> Tensor:
    return (x.square().sum(dim=2).sqrt() * weights).sum()


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
IN_ROWS: dict[str, Case] = {
    "cosines": (by_cosine, (randn(50, 300), randn(50, 300) + 0.1, 2 * integers(2, 50) - 1)),
    "rows left over": (by_cosine, (randn(33, 72), randn(33, 72), 2 * integers(2, 33) - 1)),
    "three distances": (by_three_distances, (randn(21, 160), randn(22, 160)[1:], -randn(21, 160))),
    "the largest": (largest_norm, (randn(37, 68),)),
    "two numbers": (two_numbers, (randn(37, 68),)),
    "rows that are put out": (with_lengths, (randn(37, 68),)),
    "a number of each plane": (
        lambda x: x.square().sum(dim=2).sqrt().mean(dim=1),
        (randn(3, 8, 52),),
    ),
    "two loops over rows": (of_planes, (randn(6, 7, 52), randn(6, 7))),
    "in float64": (largest_norm, (randn(37, 68).double(),)),
    "classes of rows": (
        lambda x, t: F.cross_entropy(x, t),
        (randn(45, 96), integers(96, 45)),
    ),
}
IN_COLUMNS: dict[str, Case] = {
    "pixels": (focal, (randn(2, 21, 8, 34), integers(21, 2, 8, 34))),
    "images": (
        lambda x: torch.logsumexp(x, dim=1).sum(dim=(1, 2)),
        (randn(3, 21, 8, 36),),
    ),
    "columns": (lambda x: x.square().sum(dim=0).sqrt().mean(), (randn(40, 132),)),
}
CASES = {**IN_ROWS, **IN_COLUMNS}


def emulated(it: Sample, folder: Path, parameters: dict[str, Parameter]) -> list[Tensor]:
    schedule = Schedule.of(parameters)
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert len(plan.steps) == 2
    return cuda_emulator.run(source, plan, it.inputs, folder)


def base(name: str) -> dict[str, Parameter]:
    return ROWS if name in IN_ROWS else COLUMNS


def check(name: str, folder: Path, **change: Parameter) -> None:
    function, inputs = CASES[name]
    it = made(function, *inputs)
    parameters = base(name) | change
    if inputs[0].dtype == torch.float64:
        parameters["vector"] = 2
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact = made(function, *wide).want
    for got, near, want in zip(emulated(it, folder, parameters), it.want, exact, strict=True):
        error, eagers = ((x.double() - want).abs().max() for x in (got, near))
        assert error <= 2 * eagers + 1e-6 * want.abs().max()


@pytest.mark.parametrize("name", CASES)
def test_one_number_of_all_rows_is_as_accurate_as_eagers(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


CHANGES: dict[str, tuple[str, dict[str, Parameter]]] = {
    "teams of more than a warp": ("cosines", {"team": 64, "across": 2, "vector": 2}),
    "small teams": ("cosines", {"team": 8, "across": 16}),
    "a cluster": ("cosines", {"exchange": "cluster", "segments": 3, "across": 1, "team": 64}),
    "kept in registers": ("classes of rows", {"keep": "registers", "vector": 1}),
    "columns in registers": ("pixels", {"keep": "registers", "team": 1}),
    "columns of many threads": ("columns", {"keep": "none", "team": 8, "vector": 4, "across": 16}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_layouts_give_the_same(case: str, tmp_path: Path) -> None:
    name, change = CHANGES[case]
    check(name, tmp_path, **change)


@pytest.mark.parametrize(
    "case", ["teams of more than a warp", "small teams", "columns in registers"]
)
def test_blocks_that_stay_do_all_rows(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device with so few multiprocessors that each block has several rows in turn, the last ones with none."""
    name, change = CHANGES[case]
    monkeypatch.setitem(globals(), "DEVICE", cuda.DeviceFacts(sm_count=2))
    check(name, tmp_path, **change, stay=1)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_as_in_eager(special: float, tmp_path: Path) -> None:
    function, (left, right, targets) = CASES["cosines"]
    left = left.clone()
    left[7, 3] = special
    it = made(function, left, right, targets)
    (got,) = emulated(it, tmp_path, ROWS)
    torch.testing.assert_close(got, it.want[0], equal_nan=True)


def test_the_losses_of_rows_are_not_written() -> None:
    it = made(*(CASES["cosines"][0], *CASES["cosines"][1]))
    _, plan = cuda.emit(it.analysis.region, it.analysis.kernels, Schedule.of(ROWS), DEVICE)
    (left,) = (b for b in plan.buffers if b.kind == "temporary")
    assert left.spec.dtype == "float64" and left.spec.shape == (13,)  # one for every four rows


def centred(x: Tensor) -> Tensor:
    lengths = x.square().sum(dim=1)
    return (lengths - lengths.mean()).square().mean()


OTHERS: dict[str, Case] = {
    "a number of each row": (lambda x: x.square().sum(dim=1).sqrt(), (randn(37, 68),)),
    "a mean that is subtracted": (centred, (randn(37, 68),)),
    "the place of the largest": (lambda x: x.square().sum(dim=1).argmax(), (randn(37, 68),)),
    "a product": (
        lambda x, w: (x @ w).square().sum(),
        (randn(37, 68).half(), randn(68, 40).half()),
    ),
    "rows that are added up": (lambda x: x.sum(dim=2).exp().sum(dim=0), (randn(6, 7, 52),)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_is_left_alone(name: str) -> None:
    function, inputs = OTHERS[name]
    analysis = made(function, *inputs).analysis
    assert not any(offered(s) for s in analysis.schedules(DEVICE))
    with pytest.raises(Unsupported):
        loss_reduction_of(analysis.region, analysis.kernels, 0)


def offered(schedule: Schedule) -> bool:
    return any(dict(p)["sketch"] == SKETCH for p in schedule.kernels)


@pytest.mark.parametrize("name", CASES)
def test_both_forms_are_offered(name: str) -> None:
    function, inputs = CASES[name]
    found = made(function, *inputs).analysis.schedules(DEVICE)
    assert offered(found[0]) and not all(map(offered, found))


def test_only_blocks_that_stay_do_where_others_would_leave_too_many_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_totals, "MOST_PARTIALS", 10)
    monkeypatch.setattr(cuda_total_schedules, "MOST_PARTIALS", 10)
    function, inputs = CASES["cosines"]
    analysis = made(function, *inputs).analysis
    found = loss_reduction_of(analysis.region, analysis.kernels, 0)
    device = cuda.DeviceFacts(sm_count=1)
    chosen = cuda_total_schedules.loss_schedules(found, analysis.region, device, 6)
    many = [p for p in chosen if len(inputs[0]) > 10 * int(p["across"])]
    assert many and all(p["stay"] for p in many)


def test_a_warp_has_a_row_where_there_are_many_and_more_threads_where_there_are_few() -> None:
    with torch.device("meta"):
        many, few = torch.empty(30_000, 640), torch.empty(60, 320_000)
    first = [made(largest_norm, x).analysis.schedules(DEVICE)[0].parameters(0) for x in (many, few)]
    assert [p["sketch"] for p in first] == [SKETCH, SKETCH]
    assert first[0]["team"] == 32 and int(first[1]["team"]) > 32


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA toolchain")
@pytest.mark.parametrize("name", ["three distances", "pixels"])
def test_the_kernels_compile(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    analysis = made(function, *inputs).analysis
    chosen = next(s for s in analysis.schedules(DEVICE) if offered(s))
    source, plan = cuda.emit(analysis.region, analysis.kernels, chosen, DEVICE)
    made_of = Candidate("cuda", "cuda", source, plan, "sketch")
    assert isinstance(compile_candidate(made_of, tmp_path, "sm_90a", 120), Compiled)
