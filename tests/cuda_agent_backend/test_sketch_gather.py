"""Reads at places that depend on data: what the emulator runs is what eager computes, on the cpu too where nothing is
checked."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, run_cpu, sample
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.plan.candidate import Candidate


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def places(size: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, size, shape, generator=torch.Generator().manual_seed(size))


def thrice_as_long(x: torch.Tensor) -> torch.Tensor:
    """Of three places one is an element's own, where its neighbour's weight is zero by two roundings, not by one."""
    size = x.shape[-1]
    at = ((torch.arange(3 * size, device=x.device) + 0.5) * (1 / 3) - 0.5).clamp(min=0)
    low = at.long()
    pick = torch.ops.aten._unsafe_index
    first, second = pick(x, [None, low]), pick(x, [None, (low + 1).clamp(max=size - 1)])
    return first + (second - first) * (at - low)


def enlarged(x: torch.Tensor) -> torch.Tensor:
    """Trilinear, in the operations that the compiler makes of it: torch's own kernel rounds otherwise."""
    made = select_decomp_table()[torch.ops.aten.upsample_trilinear3d.vec]
    return made(x, None, False, [2.0, 3.0, 3.0])


TABLE = randn(50, 36)
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "rows of a table": (lambda w, i: F.embedding(i, w) * 2, (TABLE, places(50, 7, 9))),
    "means of rows of a table": (lambda w, i: F.embedding(i, w).mean(1), (TABLE, places(50, 7, 9))),
    "rows of odd length": (lambda w, i: F.embedding(i, w), (randn(20, 7), places(20, 5))),
    "half precision": (lambda w, i: F.embedding(i, w).relu(), (TABLE.half(), places(50, 31))),
    "narrow integers": (lambda w, i: w[i], (TABLE, places(50, 31).int())),
    "within rows": (lambda x, i: torch.gather(x, 1, i), (randn(6, 20), places(20, 6, 13))),
    "from the end": (lambda x, i: x[i].sin(), (randn(20, 12), places(20, 31, low=-20))),
    "two dimensions": (lambda x, i, j: x[:, i, j], (randn(3, 20, 12), places(20, 31), places(12, 31))),
    "smoothed cross entropy": (
        lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1),
        (randn(60, 1000), places(1000, 60)),
    ),
    "of what is padded": (lambda x, i: F.pad(x, (2, 1))[:, i] * 2, (randn(5, 20), places(23, 31))),
    "several tables and a norm": (
        lambda v, w, i, j: F.layer_norm(F.embedding(i, v) + F.embedding(j, w), (36,)),
        (TABLE, randn(30, 36), places(50, 7, 9), places(30, 7, 9)),
    ),
}  # fmt: skip
BESIDE = "points of an image"
UNCHECKED: dict[str, Case] = {
    "reflected edges": (lambda x: F.pad(x, (2, 1, 3, 2), mode="reflect"), (randn(2, 3, 11, 17),)),
    "thrice as long": (thrice_as_long, (randn(4, 40),)),
    "volumes enlarged": (enlarged, (randn(1, 2, 3, 5, 7),)),
    "nearest": (lambda x: F.interpolate(x, size=(7, 31)), (randn(2, 3, 11, 17),)),
    BESIDE: (
        lambda x, g: F.grid_sample(x, g, padding_mode="zeros", align_corners=False),
        (randn(2, 3, 11, 17), randn(2, 9, 8, 2)),
    ),
}  # fmt: skip


def for_cuda(name: str) -> Sample:
    function, inputs = (CASES | UNCHECKED)[name]
    it = sample(function, *inputs)
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


def candidate(it: Sample, schedule: Schedule) -> Candidate:
    made = api.generate(it.analysis, schedule)
    assert isinstance(made, Candidate), made
    return made


@pytest.mark.parametrize("name", CASES | UNCHECKED)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    it = for_cuda(name)
    proposals = it.analysis.schedules()
    chosen = {tuple(s.parameters(0).get(k) for k in ("vector", "keep")): s for s in proposals[::-1]}
    ran = 0
    for schedule in list(chosen.values())[:3]:
        made = candidate(it, schedule)
        try:
            outputs = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
        except cuda_emulator.NotEmulated:
            continue
        ran += 1
        for got, want in zip(outputs, it.want, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert ran


@pytest.mark.parametrize("name", [name for name in UNCHECKED if name != BESIDE])
def test_places_that_need_no_check_are_covered_on_the_cpu(name: str, tmp_path: Path) -> None:
    function, inputs = UNCHECKED[name]
    it = sample(function, *inputs)
    outputs = run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path)
    for got, want in zip(outputs, it.want, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_places_that_may_lie_beside_are_left_to_inductor_on_the_cpu() -> None:
    function, inputs = UNCHECKED[BESIDE]
    found = api.analyse(sample(function, *inputs).task)
    assert isinstance(found, api.NotCovered) and "bounds checks" in found.reason


@pytest.mark.parametrize("name", ["thrice as long", "volumes enlarged"])
def test_weights_by_places_alone_are_eagers(name: str, tmp_path: Path) -> None:
    function, (x,) = UNCHECKED[name]
    x = x.clone()
    x.view(-1)[1::23] = -torch.inf
    it = sample(function, x)
    (want,) = it.want
    assert want.isnan().any() and want.isinf().any() and want.isfinite().any()
    for schedule in it.analysis.schedules()[:3]:
        (found,) = run_cpu(it.analysis, schedule, it.inputs, tmp_path)
        torch.testing.assert_close(found, want, equal_nan=True)


@pytest.mark.parametrize("name", ["thrice as long", "volumes enlarged"])
def test_on_cuda_products_of_places_are_rounded_before_anything_is_added(name: str) -> None:
    it = for_cuda(name)
    for schedule in it.analysis.schedules():
        source = candidate(it, schedule).source
        kernel = source[source.index('extern "C"') :]
        assert "ca::mul_rounded(" in kernel, "by the scale"
        assert "ca::mul(" in kernel, "by the weight"


def test_a_row_of_a_table_is_read_in_vectors() -> None:
    it = for_cuda("rows of a table")
    source = candidate(it, it.analysis.schedules()[0]).source
    kernel = source[source.index('extern "C"') :]
    assert "ca::load<L>" in kernel and "ca::gather" not in kernel


RUN = """
import sys
from pathlib import Path
import cuda_emulator, torch
import test_sketch_gather as t
it = t.for_cuda("rows of a table")
made = t.candidate(it, it.analysis.schedules()[0])
wrong = [x if x.is_floating_point() else torch.full_like(x, 50) for x in it.inputs]
cuda_emulator.run(made.source, made.plan, wrong, Path(sys.argv[1]))
"""


def test_an_index_out_of_range_stops_the_kernel(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    path = [str(p) for p in (Path(__file__).parents[2], here, here / "cuda_agent_backend")]
    program = f"import sys; sys.path[:0] = {path!r}\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode and "the kernel stopped itself" in done.stderr
