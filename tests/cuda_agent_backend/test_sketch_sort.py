"""Sorts and selections on cuda: recognised, written, and equal to torch's, as an emulator on the CPU runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import sample
from torch import Tensor

from cuda_agent_backend.codegen.api import as_it_stands, generate, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.cuda.sort.writer import merge_pairs, sort_pairs
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate

DEVICE = DeviceFacts()
INFINITY, NAN = float("inf"), float("nan")


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(low: int, high: int, *shape: int, dtype: torch.dtype) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=made, dtype=dtype)


def with_ties(*shape: int) -> Tensor:
    """Few different values, both zeros, infinities and NaN of both signs."""
    some = torch.tensor([0.0, -0.0, 1.5, -2.0, INFINITY, -INFINITY, NAN, -NAN, 1e-42, -1e-42])
    return some[integers(0, len(some), *shape, dtype=torch.int64)]


def analysed(function: Callable[[Tensor], Any], x: Tensor) -> Analysis:
    return sample(function, x, target="cuda").analysis


def emulated(
    function: Callable[[Tensor], Any], x: Tensor, folder: Path, number: int = 0
) -> list[Tensor]:
    analysis = analysed(function, x)
    source, plan = analysis.emit(schedules(analysis, DEVICE)[number], DEVICE)
    return cuda_emulator.run(source, plan, [x], folder)


def equal(got: Tensor, want: Tensor) -> None:
    """To the bit, but for what a NaN holds."""
    assert got.dtype == want.dtype and got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if got.dtype.is_floating_point:
        numbers = ~want.isnan()
        assert torch.equal(got.signbit() & numbers, want.signbit() & numbers)


def sort(**how: Any) -> Callable[[Tensor], Any]:
    """Stable, as torch's on the CPU is in any case."""
    return lambda x: tuple(torch.sort(x, stable=True, **how))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_the_network_of_a_thread_sorts(count: int) -> None:
    # what sorts all zeros and ones sorts all
    for bits in range(1 << count):
        x = [bits >> i & 1 for i in range(count)]
        for a, b in sort_pairs(count):
            x[a], x[b] = min(x[a], x[b]), max(x[a], x[b])
        assert x == sorted(x)


@pytest.mark.parametrize("count", [1, 3, 7, 9, 16, 21])
def test_the_network_of_a_merge_orders_what_falls_and_then_rises(count: int) -> None:
    for falling in range(count + 1):
        for first in range(falling + 1):
            for last in range(count - falling + 1):
                x = [1] * first + [0] * (count - first - last) + [1] * last
                for a, b in merge_pairs(count):
                    x[a], x[b] = min(x[a], x[b]), max(x[a], x[b])
                assert x == sorted(x)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("length", [2, 17, 33, 257, 2000])
def test_rows_are_sorted_with_their_positions(
    length: int, descending: bool, tmp_path: Path
) -> None:
    for x in (with_ties(3, length),):
        got = emulated(sort(dim=1, descending=descending), x, tmp_path)
        for one, want in zip(
            got, torch.sort(x, dim=1, descending=descending, stable=True), strict=True
        ):
            equal(one, want)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("length", [31, 3001])
def test_values_alone_are_sorted(length: int, descending: bool, tmp_path: Path) -> None:
    for x in (randn(3, length), with_ties(3, length)):
        (got,) = emulated(lambda x: torch.sort(x, 1, descending).values, x, tmp_path)
        torch.testing.assert_close(
            got, x.sort(1, descending).values, rtol=0, atol=0, equal_nan=True
        )
        zeros = (x == 0) & x.signbit()
        assert torch.equal(((got == 0) & got.signbit()).sum(1), zeros.sum(1))


@pytest.mark.parametrize("number", range(3))
def test_all_schedules_sort(number: int, tmp_path: Path) -> None:
    x = with_ties(2, 700)
    got = emulated(sort(dim=-1), x, tmp_path, number)
    for one, want in zip(got, torch.sort(x, stable=True), strict=True):
        equal(one, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("placed", [False, True], ids=["values", "both"])
def test_other_precisions(dtype: torch.dtype, placed: bool, tmp_path: Path) -> None:
    x = with_ties(3, 300).to(dtype)
    function = sort(descending=True)
    got = emulated(function if placed else lambda x: function(x)[0], x, tmp_path)
    for one, want in zip(got, function(x), strict=False):
        torch.testing.assert_close(one, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_integers(dtype: torch.dtype, descending: bool, tmp_path: Path) -> None:
    limits = torch.iinfo(dtype)
    x = integers(max(limits.min, -50), 50, 3, 200, dtype=dtype)
    x[0, 7], x[1, 9], x[2, 3] = limits.max, limits.min, limits.max
    for function in (sort(descending=descending), lambda x: sort(descending=descending)(x)[0]):
        got, want = emulated(function, x, tmp_path), sort(descending=descending)(x)
        for one, two in zip(got, want, strict=False):
            equal(one, two)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dimension_and_layout(dim: int, tmp_path: Path) -> None:
    for x in (randn(5, 40, 6), randn(6, 5, 40).permute(1, 2, 0), randn(5, 40, 12)[..., ::2]):
        if x.is_contiguous() or x.stride(2) == 200:  # others come out in another order
            got = emulated(sort(dim=dim), x, tmp_path)
            for one, want in zip(got, sort(dim=dim)(x), strict=True):
                equal(one, want)


def test_only_positions_may_be_wanted(tmp_path: Path) -> None:
    x = with_ties(9, 50)
    (got,) = emulated(lambda x: torch.argsort(x, stable=True), x, tmp_path)
    equal(got, torch.argsort(x, stable=True))


def first(x: Tensor, k: int, largest: bool) -> list[Tensor]:
    """As a stable sort has it: torch leaves open which of equal elements come first."""
    found = torch.sort(x, stable=True, descending=largest)
    return [y.new_empty(*x.shape[:-1], k).copy_(y[..., :k]) for y in found]


@pytest.mark.parametrize(
    ("length", "k", "largest"),
    [(2, 1, True), (7, 7, True), (64, 2, False), (999, 8, True), (3000, 8, False), (1200, 100, True)],
)  # fmt: skip
def test_the_first_of_rows_are_selected(length: int, k: int, largest: bool, tmp_path: Path) -> None:
    for x in (with_ties(3, length), torch.full((3, length), NAN)):
        got = emulated(lambda x: tuple(torch.topk(x, k, largest=largest)), x, tmp_path)
        for one, want in zip(got, first(x, k, largest), strict=True):
            equal(one, want)


@pytest.mark.parametrize("number", range(3))
def test_all_schedules_select(number: int, tmp_path: Path) -> None:
    x = with_ties(2, 4096)
    got = emulated(lambda x: tuple(torch.topk(x, 5)), x, tmp_path, number)
    for one, want in zip(got, first(x, 5, True), strict=True):
        equal(one, want)


def test_a_row_too_long_for_registers_is_read_again(tmp_path: Path) -> None:
    x = randn(1, 300)
    analysis = analysed(lambda x: tuple(torch.topk(x, 9)), x)
    schedule = Schedule.of({"threads": 32, "vector": 4, "groups": 16, "kept": 0})
    source, plan = analysis.emit(schedule, DEVICE)
    got = cuda_emulator.run(source, plan, [x], tmp_path)
    for one, want in zip(got, first(x, 9, True), strict=True):
        equal(one, want)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
def test_other_types_are_selected(dtype: torch.dtype, tmp_path: Path) -> None:
    x = integers(0, 90, 3, 400, dtype=torch.int64).to(dtype)
    got = emulated(lambda x: tuple(torch.topk(x, 6)), x, tmp_path)
    for one, want in zip(got, first(x, 6, True), strict=True):
        equal(one, want)


def test_a_selection_along_another_dimension(tmp_path: Path) -> None:
    x = randn(4, 70, 3)
    (got,) = emulated(lambda x: torch.topk(x, 4, dim=1).values, x, tmp_path)
    equal(got, torch.topk(x, 4, dim=1).values)


def reason(function: Callable[[Tensor], Any], x: Tensor) -> str:
    found = as_it_stands(sample(function, x, target="cuda").task)
    assert isinstance(found, NotCovered), found
    return found.reason


def test_what_is_not_covered_says_why() -> None:
    assert "other operators" in reason(lambda x: torch.sort(x * 2)[0], randn(3, 40))
    assert "no order" in reason(lambda x: torch.topk(x, 2, sorted=False)[0], randn(3, 40))
    assert "bool" in reason(lambda x: torch.sort(x)[0], randn(3, 40) > 0)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (sort(), [{"each": 8}, {"team": 3}, {"team": 0}, {"each": 1}, {"team": 2048}, {"speed": 1}]),
        (
            lambda x: torch.topk(x, 5)[0],
            [{"threads": 48}, {"groups": 4}, {"groups": 2048}, {"vector": 8}, {"kept": 2}, {"speed": 1}],
        ),
    ],
    ids=["sort", "selection"],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(
    function: Callable[[Tensor], Any], wrong: list[dict[str, int]]
) -> None:
    analysis = analysed(function, randn(3, 400))
    for schedule in schedules(analysis, DEVICE):
        given = schedule.parameters(0)
        assert isinstance(generate(analysis, schedule, DEVICE), Candidate)
        for change in wrong:
            assert isinstance(
                generate(analysis, Schedule.of({**given, **change}), DEVICE), NotCovered
            )


def test_rows_too_long_for_shared_memory_have_no_schedule() -> None:
    assert schedules(analysed(sort(), torch.empty(2, 1 << 15)), DEVICE) == []


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize(
    ("function", "x"),
    [
        (sort(), torch.empty(12, 8192)),
        (lambda x: torch.sort(x)[0], torch.empty(12, 2000)),
        (sort(), torch.empty(2, 4096, dtype=torch.int64)),
        (sort(), torch.empty(90, 30, dtype=torch.bfloat16)),
        (lambda x: tuple(torch.topk(x, 8)), torch.empty(4, 12_000)),
        (lambda x: tuple(torch.topk(x, 256)), torch.empty(4, 20_000)),
    ],
    ids=["both", "values", "integers", "short", "few of many", "many"],
)
def test_all_schedules_compile_without_spilling(
    function: Callable[[Tensor], Any], x: Tensor, tmp_path: Path
) -> None:
    analysis = analysed(function, x)
    found = schedules(analysis, DEVICE)
    assert found
    for schedule in found:
        candidate = generate(analysis, schedule, DEVICE)
        assert isinstance(candidate, Candidate), candidate
        built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())


@pytest.mark.parametrize(("length", "k"), [(64, 40), (128, 40), (512, 128), (1024, 256)])
def test_many_of_short_rows_have_a_schedule(length: int, k: int) -> None:
    it = sample(lambda x: torch.topk(x, k).values, torch.randn(100, length), target="cuda")
    assert it.analysis.schedules(DeviceFacts())
