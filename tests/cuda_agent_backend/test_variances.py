"""Variances of infinities and of the largest numbers, and their means, which are finite where a sum of them is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sketch_kit import Sample, randn, run_cpu, sample
from torch import Tensor

from cuda_agent_backend.codegen.analysis.passes import expand_welford, mark_means
from cuda_agent_backend.codegen.analysis.variances import MEAN, mark_variances
from sandbox.task.flags import threads

pytestmark = pytest.mark.usefixtures("plain_layouts")

LENGTH = 70


def edges(dtype: torch.dtype) -> Tensor:
    """Rows of which each has an edge of its own: [11, LENGTH]."""
    top = torch.finfo(dtype).max
    x = randn(11, LENGTH).to(dtype)
    ends = [
        [top, top], [-top, -top], [top, top, -top], [top, top, -top, -top, -top], [math.inf],
        [-math.inf, top], [math.inf, -top, -top], [math.inf, -math.inf], [math.nan, top],
        [top / 2, top / 4] * (LENGTH // 2),
    ]  # fmt: skip
    for row, numbers in enumerate(ends):
        places = torch.arange(len(numbers)) * (1 if len(numbers) == LENGTH else 9) % LENGTH
        x[row, places] = torch.tensor(numbers, dtype=dtype)
    return x


def means(x: Tensor, dim: int) -> Tensor:
    """Of numbers that are scaled so that no sum overflows, in double."""
    return ((x.double() * 2.0**-64).mean(dim) * 2.0**64).to(x.dtype)


def variances(x: Tensor, dim: int) -> Tensor:
    """Of numbers that are scaled where no double holds a sum of their squares."""
    plain = x.double().var(dim)
    small = (x.double() * 2.0**-540).var(dim)
    return plain.where(plain.isfinite(), small * 2.0**540 * 2.0**540).to(x.dtype)


def moments(dim: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    return lambda x: torch.var_mean(x, dim)


def over_all_schedules(it: Sample, folder: Path) -> list[list[Tensor]]:
    """Outputs under each proposed schedule, on one thread and on three in turn."""
    found = []
    for number, schedule in enumerate(it.analysis.schedules()):
        with threads((1, 3)[number % 2]):
            found.append(run_cpu(it.analysis, schedule, it.inputs, folder / str(number)))
    assert found
    return found


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """NaN and infinities are the same ones; numbers as near as their sum's largest terms let them be."""
    finite = wanted.isfinite()
    assert torch.equal(found.isfinite(), finite), (found, wanted)
    torch.testing.assert_close(found[~finite], wanted[~finite], equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(found[finite], wanted[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "dim"),
    [
        (torch.float32, 0),
        (torch.float32, 1),
        (torch.float64, 0),
        (torch.float64, 1),
        (torch.bfloat16, 1),
    ],
)
def test_a_mean_is_finite_beside_the_largest_numbers(
    dtype: torch.dtype, dim: int, tmp_path: Path
) -> None:
    x = edges(dtype) if dim else edges(dtype).t().contiguous()
    it = sample(moments(dim), x)
    for spread, mean in over_all_schedules(it, tmp_path):
        if dtype == torch.bfloat16:
            assert torch.equal(mean.isfinite(), means(x, dim).isfinite())
            assert torch.equal(spread.isnan(), variances(x, dim).isnan())
            continue
        assert_near(mean, means(x, dim))
        assert_near(spread, variances(x, dim))


@pytest.mark.parametrize("shape", [(4, 300), (4, 3, 5)])
def test_a_deviation_of_all_numbers_is_infinite_and_no_nan_where_sums_overflow(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = randn(*shape)
    top = torch.finfo(x.dtype).max
    x.view(-1)[::7] = top
    x.view(-1)[3::14] = -top
    it = sample(lambda x: torch.std_mean(x), x)
    exact = x.double().mean().float()
    place = next(n for n, y in enumerate(it.want) if torch.isclose(y, exact))
    for found in over_all_schedules(it, tmp_path):
        torch.testing.assert_close(found[place], exact)
        assert found[1 - place] == math.inf  # as Inductor's, whose variance is in float32


def test_what_an_infinite_mean_is_taken_from_is_infinite(tmp_path: Path) -> None:
    x = edges(torch.float32)[4:7]
    it = sample(lambda x: x - x.mean(1, keepdim=True), x)
    for (found,) in over_all_schedules(it, tmp_path):
        assert found[0].isinf().sum() == LENGTH - 1
        assert torch.equal(found[:2].isnan(), it.want[0][:2].isnan())


def _with_its_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.sum(1, True)
    return total, ((x - total / 2000) ** 2).sum(1)


WIDE = randn(6, 2000)
MARKED: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], int]] = {
    "a variance": (lambda x: torch.var(x, 1), 1),
    "a variance of all": (lambda x: torch.var(x), 1),
    "a norm": (lambda x: torch.nn.functional.layer_norm(x, (2000,)), 1),
    "a mean and nothing else": (lambda x: x.mean(1), 0),
    "a mean that is taken off": (lambda x: x - x.mean(1, keepdim=True), 0),
    "a sum that is kept": (_with_its_sum, 0),
    "a mean of fewer": (lambda x: ((x - x.sum(1, True) / 1000) ** 2).sum(1), 0),
}


@pytest.mark.parametrize("name", MARKED)
def test_means_of_variances_and_no_others_are_worked_out_with_care(name: str) -> None:
    function, count = MARKED[name]
    kernels = [
        mark_variances(mark_means(expand_welford(kernel)))
        for kernel in sample(function, WIDE).analysis.kernels
    ]
    assert sum(s.combine == MEAN for k in kernels for s in k.stages) == count
