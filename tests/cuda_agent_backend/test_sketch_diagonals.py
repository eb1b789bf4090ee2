"""A diagonal put into a tensor: what the emulator and the cpu run is what eager computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, randn, run_cpu, sample

from cuda_agent_backend.codegen import api
from sandbox.plan.candidate import Candidate

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "of a matrix": (torch.diagonal_scatter, (randn(20, 33), randn(20))),
    "above": (lambda x, y: torch.diagonal_scatter(x, y, 5), (randn(20, 21), randn(16))),
    "below": (lambda x, y: torch.diagonal_scatter(x, y, -3), (randn(20, 33), randn(17))),
    "of matrices, with work around it": (
        lambda x, y: torch.diagonal_scatter(x * 2, y + 1, -1, 2, 0).relu(), (randn(8, 5, 19), randn(5, 8)),
    ),
    "without elements": (lambda x, y: torch.diagonal_scatter(x, y, 33) + 1, (randn(20, 33), randn(1)[:0])),
    "of integers": (torch.diagonal_scatter, (torch.arange(63).view(7, 9), -torch.arange(7))),
    "of truths": (torch.diagonal_scatter, (randn(7, 9) > 0, randn(7) > 0)),
    "in half precision": (torch.diagonal_scatter, (randn(7, 9).bfloat16(), randn(7).bfloat16())),
}  # fmt: skip


def with_cuda(it: Sample) -> Sample:
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_puts_a_diagonal_where_eager_does(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    (got,) = run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path)
    assert torch.equal(got, it.want[0])


@pytest.mark.parametrize("name", ["above", "of matrices, with work around it", "of truths"])
def test_an_emulator_puts_a_diagonal_where_eager_does(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = with_cuda(sample(function, *inputs))
    for schedule in it.analysis.schedules()[:3]:
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
        assert torch.equal(got, it.want[0])
