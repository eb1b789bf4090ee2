"""Scans from the end, without the element itself or with one more, and what follows: one kernel, as in eager mode."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, run_cpu, sample
from torch._inductor import config as inductor_config
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.loop_nests import LoopNests
from sandbox.plan.candidate import Candidate

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def back(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1)


def from_end(x: torch.Tensor) -> torch.Tensor:
    return back(back(x).cumsum(1))


def zero_first(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(x[:, :1]), x], 1)


def odd(x: torch.Tensor) -> torch.Tensor:
    """With an infinity and something that is not a number."""
    x = x.clone()
    x[0, 20], x[1, 100] = math.nan, -math.inf
    return x


CASES: dict[str, Case] = {
    "from the end": (from_end, (odd(randn(9, 1100)),)),
    "from the end of columns": (from_end, (odd(randn(3, 170, 32)),)),
    "from the end of a row that launches share": (lambda x: from_end(x) * 2, (randn(1, 70_000) / 9,)),
    "halves from the end": (from_end, (randn(3, 1104).half() / 8,)),
    "products from the end, and what they are of": (lambda x: back(back(x).cumprod(1)) - x, (1 + randn(3, 1100) / 30,)),
    "extremes from the end": (lambda x: back(back(x).cummax(1).values), (odd(randn(3, 1101)),)),
    "exponentials from the end": (lambda x: back(back(x).logcumsumexp(1)).exp(), (randn(3, 130, 36),)),
    "from the end where kept": (lambda x, m: from_end(torch.where(m > 0, x, 0)) * m, (randn(3, 1100), randn(3, 1100))),
    "a softmax from the end": (lambda x: from_end(x).softmax(1), (randn(3, 1100),)),
    "pointwise after columns": (lambda x: x.cumsum(1).exp2() + x, (randn(3, 170, 32) / 9,)),
    "without itself": (lambda x: x.cumsum(1) - x, (odd(randn(9, 1100)),)),
    "what is left": (lambda x: x.sum(1, keepdim=True) - x.cumsum(1), (odd(randn(9, 1100)),)),
    "those before": (lambda x: F.pad(x.cumsum(1)[:, :-1], (1, 0)), (odd(randn(9, 1100)),)),
    "columns of those before": (lambda x: F.pad(x.cumsum(1)[:, :-1], (0, 0, 1, 0)), (odd(randn(3, 170, 32)),)),
    "those behind": (lambda x: back(F.pad(back(x).cumsum(1)[:, :-1], (1, 0))), (odd(randn(3, 1100)),)),
    "products before": (lambda x: F.pad(x.cumprod(1)[:, :-1], (1, 0), value=1.0) * x, (1 + randn(3, 1100) / 30,)),
    "integers before": (lambda x: F.pad(x.cumsum(1)[:, :-1], (1, 0)), ((randn(3, 1100) * 9).int(),)),
    "three results": (lambda x: (lambda c: (c, c - x, zero_first(c[:, :-1])))(x.cumsum(1)), (randn(3, 1100),)),
    "zero first": (lambda x: zero_first(x.cumsum(1)), (odd(randn(9, 1100)),)),
    "columns with zeros first": (lambda x: zero_first(x.cumsum(1)) * 2, (odd(randn(3, 170, 32)),)),
    "zero last, from the end": (lambda x: back(zero_first(back(x).cumsum(1))), (randn(3, 1100),)),
    "ones around": (lambda x: F.pad(x.cumsum(1), (1, 3), value=1.0), (randn(3, 1100),)),
    "zero first in a row that launches share": (lambda x: zero_first(x.cumsum(1)), (randn(1, 70_000) / 9,)),
    "two before": (lambda x: F.pad(x.cumsum(1)[:, :-2], (2, 0)), (odd(randn(9, 300)),)),
    "two behind": (lambda x: F.pad(x.cumsum(1)[:, 2:], (0, 2)), (odd(randn(9, 300)),)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def rows_as_they_are() -> Iterator[None]:
    """Inductor may pad odd rows, and outputs have the layout that the task says."""
    with inductor_config.patch(comprehensive_padding=False):
        yield


def for_cuda(function: Callable[..., Any], *inputs: torch.Tensor) -> Sample:
    it = sample(function, *inputs)
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


def one_of_each(schedules: list[Schedule]) -> list[Schedule]:
    """The first schedule of every way to lay out the first kernel and to keep what it reads."""
    found: dict[tuple[object, ...], Schedule] = {}
    for schedule in schedules:
        p = schedule.parameters(0)
        way = ("lanes", "exchange", "keep", "stream")
        found.setdefault((*(p.get(name) for name in way), p.get("team") == 1), schedule)
    return list(found.values())


def check(got: list[torch.Tensor], it: Sample) -> None:
    for one, want in zip(got, it.want, strict=True):
        loose = 1e-2 if want.dtype == torch.float16 else 1e-4
        torch.testing.assert_close(one, want, rtol=loose, atol=loose, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_an_emulator_computes_one_kernel_as_eager_does(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = for_cuda(function, *inputs)
    assert isinstance(it.analysis, LoopNests) and len(it.analysis.kernels) == 1
    ran = 0
    for schedule in one_of_each(it.analysis.schedules()):
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        try:
            check(cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path), it)
        except cuda_emulator.NotEmulated:
            continue
        ran += 1
    assert ran > 1


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_computes_as_eager_does(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    it = sample(function, *inputs)
    for number, schedule in enumerate(it.analysis.schedules()[:2]):
        folder = tmp_path / str(number)
        folder.mkdir()
        check(run_cpu(it.analysis, schedule, it.inputs, folder), it)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x.cumsum(1).flatten()[:-1], (1, 0)),  # goes on in the row before
        lambda x: x.cumsum(1) + back(x.cumsum(1)),
        lambda x: torch.cat([x, x, x.cumsum(1)], 1),
    ],
)
def test_what_does_not_run_along_a_scan_is_another_kernel(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    it = for_cuda(function, randn(9, 300))
    assert isinstance(it.analysis, LoopNests) and len(it.analysis.kernels) == 2
    made = api.generate(it.analysis, it.analysis.schedules()[0])
    assert isinstance(made, Candidate), made
    check(cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path), it)


def test_what_has_no_room_beside_a_scan_on_the_chip_is_another_kernel() -> None:
    def two_before(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x.cumsum(1)[:, :-2], (0, 0, 2, 0))

    for length, kernels in ((300, 1), (7000, 2)):
        it = for_cuda(two_before, torch.ones(2, length, 64))
        assert isinstance(it.analysis, LoopNests) and len(it.analysis.kernels) == kernels
        assert it.analysis.schedules()


def test_vectors_are_as_wide_as_their_places_let_them_be_stored_whole() -> None:
    for function, width in ((from_end, 4), (lambda x: zero_first(x.cumsum(1)), 1)):
        found = for_cuda(function, torch.ones(64, 1024)).analysis.schedules()
        assert found[0].parameters(0)["vector"] == width
        assert any(s.parameters(0)["vector"] == 4 for s in found)


def test_what_a_scan_and_its_results_both_need_is_read_once() -> None:
    it = for_cuda(lambda x: x.cumsum(1) - x, torch.ones(64, 1024))
    made = api.generate(it.analysis, it.analysis.schedules()[0])
    assert isinstance(made, Candidate)
    assert made.source.partition('extern "C"')[2].count("m_arg0_1 +") == 1
