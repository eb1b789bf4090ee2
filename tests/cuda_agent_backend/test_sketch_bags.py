"""Bags of rows and sums of overlapping windows: turned into gathers, and right as an emulator runs them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, run_cpu, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.graph.gathers import Cover, overlap_add
from sandbox.accuracy.input_bounds import input_bounds
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate
from sandbox.timing.roofline import floor_bytes


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def places(size: int, *shape: int) -> Tensor:
    return torch.randint(size, shape, generator=torch.Generator().manual_seed(size))


def bag(mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, i: F.embedding_bag(i, w, mode=mode)


def trainable_bag(table: Tensor, places: Tensor) -> Tensor:
    """What `F.embedding_bag` runs where the table requires a gradient."""
    offsets = torch.arange(0, places.numel(), places.shape[1])
    found: Tensor = torch._embedding_bag(table, places.reshape(-1), offsets, False, 1)[0]
    return found


def with_nan() -> Tensor:
    table = randn(50, 36)
    table[::5], table[:, 7], table[3, 3] = math.nan, -math.inf, math.inf
    return table


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
BAGS: dict[str, Case] = {
    "means": (bag("mean"), (randn(50, 36), places(50, 7, 9))),
    "sums of odd rows": (bag("sum"), (randn(50, 7), places(50, 7, 9))),
    "largest": (bag("max"), (randn(50, 36), places(50, 7, 9))),
    "largest with NaN": (bag("max"), (with_nan(), places(50, 70, 4))),
    "means with NaN": (bag("mean"), (with_nan(), places(50, 7, 4))),
    "bags of one": (bag("mean"), (randn(50, 36), places(50, 7, 1))),
    "half precision": (bag("sum"), (randn(50, 36).half(), places(50, 7, 9))),
    "of a table that could be trained": (trainable_bag, (randn(50, 36), places(50, 7, 9))),
    "narrow integers, then an activation": (
        lambda w, i: F.embedding_bag(i, w, mode="mean").relu() * 2,
        (randn(50, 36), places(50, 7, 9).int()),
    ),
    "then two products": (
        lambda w, i, a, b: F.embedding_bag(i, w) @ a @ b,
        (randn(50, 36), places(50, 7, 9), randn(36, 8), randn(8, 5)),
    ),
}  # fmt: skip
FOLDS: dict[str, Case] = {
    "halves overlap": (lambda x: F.fold(x, (20, 24), 8, stride=4), (randn(2, 192, 20),)),
    "windows of unequal cover": (lambda x: F.fold(x, (13, 17), (5, 3), stride=(2, 4)), (randn(2, 45, 20),)),
    "every place": (lambda x: F.fold(x, (9, 8), 3, stride=1), (randn(2, 18, 42),)),
    "padded": (lambda x: F.fold(x, (14, 10), 4, stride=2, padding=1) + 1, (randn(2, 32, 35),)),
    "dilated": (lambda x: F.fold(x, (12, 11), 3, stride=1, dilation=2), (randn(1, 18, 56),)),
    "apart": (lambda x: F.fold(x, (12, 12), 2, stride=5), (randn(1, 8, 9),)),
    "half precision": (lambda x: F.fold(x, (20, 24), 8, stride=4), (randn(1, 128, 20).half(),)),
}  # fmt: skip


def for_cuda(it: Sample) -> Sample:
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


@pytest.mark.parametrize("name", [*(f"bag: {n}" for n in BAGS), *(f"fold: {n}" for n in FOLDS)])
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    kind, _, which = name.partition(": ")
    function, inputs = (BAGS if kind == "bag" else FOLDS)[which]
    it = for_cuda(sample(function, *inputs))
    ran = 0
    for schedule in it.analysis.schedules()[:4]:
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        try:
            (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
        except cuda_emulator.NotEmulated:
            continue
        ran += 1
        tolerance = 4e-3 if inputs[0].dtype == torch.float16 else 1e-5
        torch.testing.assert_close(got, it.want[0], rtol=tolerance, atol=tolerance, equal_nan=True)
    assert ran


@pytest.mark.parametrize("name", FOLDS)
def test_windows_are_summed_on_the_cpu_too(name: str, tmp_path: Path) -> None:
    function, inputs = FOLDS[name]
    it = sample(function, *inputs)
    (got,) = run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path)
    tolerance = 4e-3 if inputs[0].dtype == torch.float16 else 1e-5
    torch.testing.assert_close(got, it.want[0], rtol=tolerance, atol=tolerance)


def test_indices_of_bags_are_drawn_within_the_table_and_the_table_may_be_read_in_part() -> None:
    function, inputs = BAGS["means"]
    it = sample(function, *inputs)
    table = next(n for n, x in enumerate(it.inputs) if x.is_floating_point())
    assert input_bounds(it.task)[1 - table] == (0, 50)
    assert floor_bytes(it.task) == (7 * 9 * 8, 7 * 36 * 4)


@pytest.mark.parametrize("how", [{"padding_idx": 3}, {"include_last_offset": True}, {}])
def test_other_bags_are_left_to_inductor(how: dict[str, Any]) -> None:
    offsets = torch.tensor([0, 3, 9] if "include_last_offset" in how else [0, 4])
    found = api.analyse(
        for_cuda(
            sample(
                lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", **how),
                randn(50, 36), places(50, 9), offsets,
            )
        ).task
    )  # fmt: skip
    assert isinstance(found, api.NotCovered)


def folded(function: Callable[..., Any], *inputs: Tensor) -> Any:
    graph = build_graph(sample(function, *inputs).task).graph
    return next((f for n in graph.nodes if (f := overlap_add(n))), None)


def test_windows_are_recognised_by_their_steps() -> None:
    found = folded(*[FOLDS["windows of unequal cover"][0], *FOLDS["windows of unequal cover"][1]])
    assert found.covers == (Cover(0, 5, 1, 5, 2), Cover(2, 3, 3, 4, 4))


def test_windows_whose_steps_leave_gaps_in_both_ways_are_left() -> None:
    assert folded(lambda x: F.fold(x, (12, 11), 2, stride=2, dilation=3), randn(1, 4, 20)) is None
