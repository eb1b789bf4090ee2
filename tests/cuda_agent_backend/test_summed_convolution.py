"""Sums over all positions of a convolution on cuda, rewritten: right, as an emulator on the CPU runs them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.alternatives import PARAMETER
from cuda_agent_backend.codegen.api import Alternatives, analyse, generate, schedules
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task

DEVICE = DeviceFacts()
RULE = "sum_of_convolution"


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(*shape, generator=made).to(dtype)


def positive(x: Tensor, places: dict[tuple[int, ...], float]) -> Tensor:
    """All larger than 0, but for some places."""
    x = x.abs() + 0.1
    for place, value in places.items():
        x[place] = value
    return x


def mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(F.conv2d(x, w, b, padding=1).mean((2, 3)) * 3)


HALF = torch.bfloat16
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "plain": (mean, (randn(2, 3, 12, 17), randn(10, 3, 3, 5), randn(10))),
    "half": (mean, (randn(2, 3, 12, 17, dtype=HALF), randn(10, 3, 3, 5, dtype=HALF), randn(10, dtype=HALF))),
    "infinities": (
        lambda x, w: F.conv2d(x, w, padding=(1, 0)).mean((2, 3)),
        (
            positive(randn(3, 3, 12, 17), {(1, 0, 5, 5): math.inf}),
            positive(randn(10, 3, 3, 5), {(4, 2, 1, 1): -math.inf, (7, 0, 2, 2): math.inf}),
        ),
    ),
    "steps, dilation and groups": (
        lambda x, w: F.conv2d(x, w, None, (1, 2), (3, 1), (2, 1), 2).sum((2, 3), keepdim=True),
        (randn(2, 6, 16, 15), randn(20, 3, 3, 3)),
    ),
    "a volume over images": (
        lambda x, w, b: F.conv3d(x, w, b).sum((0, 2, 3, 4)),
        (randn(2, 3, 6, 8, 9), randn(16, 3, 2, 3, 2), randn(16)),
    ),
    "channels last": (
        mean,
        (randn(2, 6, 12, 17).to(memory_format=torch.channels_last), randn(10, 6, 3, 5), randn(10)),
    ),
    "a line": (lambda x, w: F.conv1d(x, w, stride=3).mean(2), (randn(3, 4, 100), randn(16, 4, 5))),
}  # fmt: skip


def for_cuda(function: Callable[..., Any], *inputs: Tensor) -> Task:
    return dataclasses.replace(sample(function, *inputs).task, target="cuda")


def rewritten(task: Task, most: int) -> list[Candidate]:
    analysis = analyse(task)
    assert isinstance(analysis, Alternatives), analysis
    own = [s for s in schedules(analysis, DEVICE) if RULE in str(s.parameters(0).get(PARAMETER))]
    made = [generate(analysis, schedule, DEVICE) for schedule in own[:most]]
    assert made and all(isinstance(one, Candidate) for one in made), made
    return [one for one in made if isinstance(one, Candidate)]


@pytest.mark.parametrize("name", CASES)
def test_what_an_emulator_runs_is_as_exact_as_eager(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    want = function(*(x.double() for x in inputs))
    (made,) = rewritten(for_cuda(function, *inputs), 1)
    (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
    finite = want.isfinite()
    torch.testing.assert_close(got[~finite].double(), want[~finite], equal_nan=True)
    errors = [(x.double() - want)[finite].square().mean().sqrt() for x in (got, it.want[0])]
    assert errors[0] <= 1.1 * errors[1] + 1e-7 * want[finite].abs().max()
    assert (name == "infinities") == bool((~finite).any())


def test_schedules_compile_without_spilling(tmp_path: Path) -> None:
    if isinstance(find_cuda(), Missing):
        pytest.skip("no CUDA toolkit")
    inputs = torch.empty(16, 32, 120, 130), torch.empty(96, 32, 5, 5), torch.empty(96)
    for candidate in rewritten(for_cuda(mean, *inputs), 3):
        built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
