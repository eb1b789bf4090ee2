"""Running extremes and running sums of exponentials, with NaN and infinities among the values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import cuda_emulator
import pytest
import torch
from sketch_kit import run_cpu, sample
from torch._inductor import config as inductor_config

from cuda_agent_backend.codegen import api
from sandbox.plan.candidate import Candidate


def values() -> torch.Tensor:
    x = torch.randn(7, 900, generator=torch.Generator().manual_seed(1))
    x[0, 500], x[1, 20] = math.nan, math.inf
    x[2, :60], x[3] = -math.inf, -math.inf
    return x


EXTREMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest along rows": lambda x: torch.cummax(x, 1).values * 2,
    "smallest along columns": lambda x: torch.cummin(x, 0).values,
}
CASES = EXTREMES | {
    "exponentials along rows": lambda x: torch.logcumsumexp(x, 1),
    "exponentials along columns": lambda x: torch.logcumsumexp(x, 0).exp(),
}


@pytest.mark.parametrize("name", CASES)
def test_an_emulator_scans_as_eager_does(name: str, tmp_path: Path) -> None:
    with inductor_config.patch(comprehensive_padding=False):
        it = sample(CASES[name], values())
    it = dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))
    ran = 0
    for schedule in it.analysis.schedules()[:4]:
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        try:
            (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
        except cuda_emulator.NotEmulated:
            continue
        torch.testing.assert_close(got, it.want[0], rtol=1e-4, atol=1e-5, equal_nan=True)
        ran += 1
    assert ran


@pytest.mark.parametrize("name", EXTREMES)
def test_the_cpu_scans_as_eager_does(name: str, tmp_path: Path) -> None:
    it = sample(EXTREMES[name], values())
    (got,) = run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], equal_nan=True)


def test_the_places_of_extremes_are_left_to_inductor() -> None:
    found = api.analyse(sample(lambda x: torch.cummax(x, 1), values()).task)
    assert isinstance(found, api.NotCovered)
