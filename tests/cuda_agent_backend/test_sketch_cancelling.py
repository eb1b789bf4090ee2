"""Sums that cancel: which ones are found, and that equal terms of both signs leave nothing in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda, run_cpu, sample
from torch import Tensor

from cuda_agent_backend.codegen.analysis.cancellation import WIDE_SUM, mark_cancelling
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.accuracy.inputs import make_inputs
from sandbox.accuracy.oracle import run_eager, run_oracle
from sandbox.accuracy.rule import compare
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def ramp(x: Tensor, dim: int = -1) -> Tensor:
    return torch.linspace(-1, 1, x.shape[dim], dtype=x.dtype)


def expected_place(x: Tensor) -> Tensor:
    """Expected row and column under the softmax of maps [batch, map, row, column]."""
    weights = torch.softmax(x.flatten(2), dim=2).view_as(x)
    down = (weights.sum(dim=3) * ramp(x, 2)).sum(dim=2)
    across = (weights.sum(dim=2) * ramp(x, 3)).sum(dim=2)
    return torch.stack([down, across], dim=-1)


ROWS, COLUMNS = randn(6, 1000), randn(520, 64)
FOUND: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "by a ramp": (lambda x: (x * ramp(x)).sum(1), (ROWS,), 1),
    "by a ramp and a constant": (lambda x: (ramp(x) * x / 3.0).sum(1), (ROWS,), 1),
    "by a wave": (lambda x: (x * (torch.arange(1000) * 0.1).cos()).sum(1), (ROWS,), 1),
    "by what an array was made of": (
        lambda x: (torch.softmax(x, 1) * ramp(x)).sum(1),
        (ROWS,),
        1,
    ),
    "by rows and columns": (expected_place, (randn(1, 3, 32, 30),), 2),
    "by an operand": (lambda x, w: (x * w).sum(1), (ROWS, randn(1000)), 0),
    "by positions from zero": (lambda x: (x * torch.arange(1000)).sum(1), (ROWS,), 0),
    "by a mask": (lambda x: (x * (torch.arange(1000) < 300).float()).sum(1), (ROWS,), 0),
    "by a negative constant": (lambda x: (x * -0.5).sum(1), (ROWS,), 0),
    "a ramp that is added": (lambda x: (x + ramp(x)).sum(1), (ROWS,), 0),
    "already in double": (lambda x: (x * ramp(x)).sum(1), (ROWS.double(),), 0),
    "an extreme": (lambda x: (x * ramp(x)).amax(1), (ROWS,), 0),
}


@pytest.mark.parametrize("name", FOUND)
def test_sums_weighed_by_places_on_both_sides_of_zero_are_found(name: str) -> None:
    function, inputs, count = FOUND[name]
    kernels = map(mark_cancelling, on_cuda(function, *inputs).analysis.kernels)
    assert sum(s.combine == WIDE_SUM for k in kernels for s in k.stages) == count


def emulated(it: Sample, schedule: Schedule, inputs: list[Tensor], folder: Path) -> list[Tensor]:
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    return cuda_emulator.run(source, plan, inputs, folder)


Parameters = dict[str, Parameter]
ALONG: Parameters = {
    "sketch": "row",
    "vector": 4,
    "team": 32,
    "across": 4,
    "keep": "none",
    "unroll": 4,
}
ACROSS: Parameters = {**ALONG, "lanes": "outer", "vector": 2, "across": 8}
WAYS: dict[str, Parameters] = {
    "a warp": {},
    "a block": {"team": 128, "across": 1},
    "a cluster": {"team": 32, "across": 1, "exchange": "cluster", "segments": 4},
    "two launches": {"exchange": "split", "segments": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("along", [True, False])
def test_terms_of_both_signs_leave_nothing_wherever_threads_meet(
    way: str, along: bool, tmp_path: Path
) -> None:
    x, dim = (ROWS, 1) if along else (COLUMNS, 0)
    weights = ramp(x, dim) if along else ramp(x, dim)[:, None]

    def weighed(x: Tensor) -> Tensor:
        rise = ramp(x, dim)
        return (x * (rise if along else rise[:, None])).sum(dim)

    schedule = Schedule.of({**(ALONG if along else ACROSS), **WAYS[way]})
    it = on_cuda(weighed, x)
    (flat,) = emulated(it, schedule, [torch.full_like(x, 0.3)], tmp_path)
    assert not flat.any()
    (drawn,) = emulated(it, schedule, [x], tmp_path)
    torch.testing.assert_close(
        drawn.double(), (x.double() * weights).sum(dim), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("distribution", ["zeros", "constant", "normal", "ramp", "edges"])
def test_the_expected_place_in_a_map_is_as_exact_as_eagers(
    distribution: str, target: str, tmp_path: Path
) -> None:
    x = randn(1, 4, 128, 120)  # sizes for which eager mode is exact where weights are equal
    host, it = sample(expected_place, x), on_cuda(expected_place, x)
    module, inputs = build_graph(host.task), make_inputs(host.task.inputs, 5, distribution)
    if target == "cuda":
        found = emulated(it, it.analysis.schedules(DEVICE)[0], inputs, tmp_path)
    else:
        found = run_cpu(host.analysis, host.analysis.schedules()[0], inputs, tmp_path)
    oracle = run_oracle(host.task, module, inputs).outputs
    report = compare(found, run_eager(module, inputs), oracle)
    assert report.passes, report.reason
    if distribution in ("zeros", "constant"):
        assert report.outputs[0].rms_error < 1e-16


@pytest.mark.parametrize("lanes", ["inner", "outer"])
def test_terms_of_both_signs_leave_nothing_on_a_cpu(lanes: str, tmp_path: Path) -> None:
    dim = 1 if lanes == "inner" else 0
    x = torch.full((24, 1003) if dim else (1003, 24), 0.3)
    it = sample(lambda x: (x * (ramp(x, 1) if dim else ramp(x, 0)[:, None])).sum(dim), x)
    schedule = Schedule.of({"lanes": lanes, "width": 8, "unroll": 2, "ahead": 0, "stream": 0})
    (found,) = run_cpu(it.analysis, schedule, [x], tmp_path)
    assert not found.any()


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_sums_in_double_compile_without_spilling_registers(tmp_path: Path) -> None:
    it = on_cuda(expected_place, randn(1, 4, 128, 120))
    schedule = it.analysis.schedules(DEVICE)[0]
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert "wide_sum_acc<float" in source.split('extern "C"', 1)[1]
    candidate = Candidate("cuda", "cuda", source, plan, "sketch")
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(facts["spill_store_bytes"] == 0 for facts in (built.facts or {}).values())
