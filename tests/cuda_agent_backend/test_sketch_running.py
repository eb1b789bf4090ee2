"""Running extremes, their places, and running sums of exponentials, with NaN and infinities among the values."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, run_cpu, sample
from torch._inductor import config as inductor_config

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.ir.headers import header
from sandbox.plan.candidate import Candidate


def values() -> torch.Tensor:
    x = torch.randn(7, 900, generator=torch.Generator().manual_seed(1))
    x[0, 500], x[1, 20] = math.nan, math.inf
    x[2, :60], x[3] = -math.inf, -math.inf
    return x


def ties(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Few different values, so that extremes come again and again; zeros of both signs, NaN and infinities in some."""
    x = torch.randint(-3, 4, (7, 900), generator=torch.Generator().manual_seed(2))
    if not dtype.is_floating_point:
        return x.to(dtype)
    made = x.to(dtype)
    made[0, 500], made[0, 700], made[1, 20], made[1, 40] = math.nan, math.nan, math.inf, math.inf
    made[2, :60], made[3], made[4] = -math.inf, -math.inf, math.inf
    made[5] = torch.where(x[5] % 2 == 0, 0.0, -0.0)
    return made


EXTREMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest along rows": lambda x: torch.cummax(x, 1).values * 2,
    "smallest along columns": lambda x: torch.cummin(x, 0).values,
}
EXPONENTIALS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exponentials along rows": lambda x: torch.logcumsumexp(x, 1),
    "exponentials along columns": lambda x: torch.logcumsumexp(x, 0).exp(),
}
CASES = EXTREMES | EXPONENTIALS
PLACES: dict[str, tuple[Callable[[torch.Tensor], Any], torch.dtype]] = {
    "largest along rows": (lambda x: torch.cummax(x, 1), torch.float32),
    "largest along columns": (lambda x: torch.cummax(x, 0), torch.float32),
    "smallest along rows": (lambda x: torch.cummin(x, 1), torch.float32),
    "places alone": (lambda x: torch.cummin(x * 2, 1).indices + 1, torch.float32),
    "smallest in half precision": (lambda x: torch.cummin(x, 1), torch.bfloat16),
    "largest of integers": (lambda x: torch.cummax(x, 1), torch.int32),
    "smallest of integers along columns": (lambda x: torch.cummin(x, 0), torch.int32),
    "smallest of bytes": (lambda x: torch.cummin(x, 1), torch.uint8),
    "largest of truths": (lambda x: torch.cummax(x, 1), torch.bool),
    "of one element each": (lambda x: torch.cummax(x[:, :1], 1), torch.float32),
}


def emulated(it: Sample, folder: Path) -> Iterator[Sequence[torch.Tensor]]:
    """What the first schedules for a GPU give, as far as they are emulated."""
    it = dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))
    for schedule in it.analysis.schedules()[:4]:
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        with suppress(cuda_emulator.NotEmulated):
            yield cuda_emulator.run(made.source, made.plan, it.inputs, folder)


def each_way(it: Sample, folder: Path) -> Iterator[Sequence[torch.Tensor]]:
    """What the first schedule for a processor gives, and one with lanes along the other loop where there is one."""
    ways = {dict(s.parameters(0))["lanes"]: s for s in reversed(it.analysis.schedules())}
    for schedule in ways.values():
        yield run_cpu(it.analysis, schedule, it.inputs, folder)


@pytest.mark.parametrize("name", CASES)
def test_an_emulator_scans_as_eager_does(name: str, tmp_path: Path) -> None:
    with inductor_config.patch(comprehensive_padding=False):
        it = sample(CASES[name], values())
    found = [got for (got,) in emulated(it, tmp_path)]
    for got in found:
        torch.testing.assert_close(got, it.want[0], rtol=1e-4, atol=1e-5, equal_nan=True)
    assert found


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_scans_as_eager_does(name: str, tmp_path: Path) -> None:
    it = sample(CASES[name], values())
    for (got,) in each_way(it, tmp_path):
        torch.testing.assert_close(got, it.want[0], equal_nan=True)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PLACES)
def test_places_are_those_of_the_last_of_equal_extremes(
    name: str, target: str, tmp_path: Path
) -> None:
    function, dtype = PLACES[name]
    it = sample(function, ties(dtype))
    found = list((each_way if target == "cpu" else emulated)(it, tmp_path))
    for got in found:
        for own, want in zip(got, it.want, strict=True):
            torch.testing.assert_close(own, want, rtol=0, atol=0, equal_nan=True)
    assert found


def compiled(sources: Sequence[str], folder: Path) -> None:
    """What g++ takes from the emulator need not be what nvcc takes; all kernels at once, under names of their own."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc")
    prelude = header("cuda/common/prelude.cuh")
    kernels = [
        re.sub(r"\bk(\d\w*)\(", rf"k{n}of\1(", s.replace(prelude, ""))
        for n, s in enumerate(sources)
    ]
    (folder / "k.cu").write_text("\n".join([prelude, *kernels]))
    command = [compiler, "-w", "-arch=sm_90a", "--ptx", "k.cu", "-o", "k.ptx"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "k.ptx").read_text().count(".entry") >= len(sources)


def sources_of(it: Sample) -> list[str]:
    it = dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))
    made = [api.generate(it.analysis, schedule) for schedule in it.analysis.schedules()]
    return list(dict.fromkeys(one.source for one in made if isinstance(one, Candidate)))


def test_the_cuda_compiler_takes_scans_of_places(tmp_path: Path) -> None:
    compiled(sources_of(sample(lambda x: torch.cummax(x, 1), ties()))[:1], tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool])
def test_the_cuda_compiler_takes_all_scans_of_narrow_values(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    short = ties(dtype)[:, :37]
    found = sources_of(sample(lambda x: torch.cummin(x, 1).values, short))
    found += sources_of(sample(lambda x: torch.cummax(x, 0), short))
    if dtype != torch.bool:
        found += sources_of(sample(lambda x: x.cumsum(1, dtype=dtype), short))
    compiled(list(dict.fromkeys(found)), tmp_path)


def test_what_is_little_beside_the_largest_exponential_stays(tmp_path: Path) -> None:
    x = torch.tensor([[0.0, -46.0, -46.0], [-46.0, 0.0, -46.0]])
    it = sample(lambda x: torch.logcumsumexp(x, 1), x)
    (got,) = run_cpu(it.analysis, it.analysis.schedules()[0], it.inputs, tmp_path)
    assert got[0, 1] > 0
    torch.testing.assert_close(got, it.want[0], rtol=1e-6, atol=0.0)


def in_order(x: torch.Tensor) -> torch.Tensor:
    """The running sums of the middle dimension, from left to right in single precision."""
    made, run = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for place in range(x.shape[1]):
        run = run + x[:, place]
        made[:, place] = run
    return made


def test_a_sum_across_rows_leaves_the_numbers_where_it_does_from_left_to_right(
    tmp_path: Path,
) -> None:
    most = torch.finfo(torch.float32).max
    x = torch.randn(3, 37, 37, generator=torch.Generator().manual_seed(3))
    x[0, 3], x[1, 3], x[2, 30] = math.inf, most, math.nan
    x[:2, 20:22] = -most  # alone they come to minus infinity
    want = in_order(x)
    assert want[0, 3:].isposinf().all() and want[1].isfinite().all()
    with inductor_config.patch(comprehensive_padding=False):
        it = sample(lambda x: torch.cumsum(x, 1), x)
    it = dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))
    teams = set()
    for schedule in it.analysis.schedules():
        given = dict(schedule.parameters(0))
        made = api.generate(it.analysis, schedule)
        if given["segments"] > 1 or given["team"] in teams or not isinstance(made, Candidate):
            continue
        teams.add(given["team"])
        (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
        torch.testing.assert_close(got, want, equal_nan=True)
    assert {1, 8} < teams


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_the_places_of_values_of_64_bits_are_left_to_inductor(dtype: torch.dtype) -> None:
    found = api.analyse(sample(lambda x: torch.cummax(x, 1), values().nan_to_num().to(dtype)).task)
    assert isinstance(found, api.NotCovered)
    assert "a scan of values of 64 bits with their places" in found.reason


def test_bits_of_numbers_that_a_program_asks_for_are_left_to_inductor() -> None:
    found = api.analyse(sample(lambda x: (x * 2).view(torch.int32) + 1, values()).task)
    assert isinstance(found, api.NotCovered)
    assert "bit casts" in found.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_exponentials_of_what_half_precision_would_have_rounded_are_left(
    dtype: torch.dtype,
) -> None:
    x = torch.randn(5, 7).to(dtype)
    computed = api.analyse(sample(lambda x: torch.logcumsumexp(x - 1000, 1), x).task)
    assert isinstance(computed, api.NotCovered)
    given = api.analyse(sample(lambda x: torch.logcumsumexp(x, 1).exp(), x).task)
    assert not isinstance(given, api.NotCovered)


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flip": lambda x: x.flip(1),
    "slice of a permutation": lambda x: x.t()[:, ::2],
    "copy": lambda x: x.t().contiguous(),
    "repetition": lambda x: x.repeat(2, 2),
    "concatenation": lambda x: torch.cat([x, x.flip(1)], 1),
    "part": lambda x: x.split(3, 1)[1],
    "zeros": lambda x: torch.nn.functional.pad(x, (1, 0)),
}


@pytest.mark.parametrize("name", MOVES)
def test_exponentials_of_what_is_only_moved_are_covered_in_half_precision(name: str) -> None:
    x, move = torch.randn(5, 7).bfloat16(), MOVES[name]
    moved = api.analyse(sample(lambda x: torch.logcumsumexp(move(x), 1), x).task)
    assert not isinstance(moved, api.NotCovered), moved
    computed = api.analyse(sample(lambda x: torch.logcumsumexp(move(x - 1000), 1), x).task)
    assert isinstance(computed, api.NotCovered)


@pytest.mark.parametrize(
    "source", [torch.randn(5, 7), torch.randint(0, 1000, (5, 7))], ids=["float32", "int64"]
)
def test_exponentials_of_what_is_converted_to_half_precision_are_left(source: torch.Tensor) -> None:
    found = api.analyse(sample(lambda x: torch.logcumsumexp(x.bfloat16().flip(1), 1), source).task)
    assert isinstance(found, api.NotCovered)


def test_exponentials_behind_constants_of_more_digits_are_left() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(torch.nn.functional.pad(x, (1, 0), value=0.1), 1)

    assert isinstance(api.analyse(sample(padded, torch.randn(5, 7).half()).task), api.NotCovered)
