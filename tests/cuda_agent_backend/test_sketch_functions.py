"""Functions of our own on cuda: as accurate as the device library's, and like them for special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cuda_emulator
import pytest
import torch
from sketch_kit import sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda

DEVICE = cuda.DeviceFacts()
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 1e-42, -1e-42, 1.1754944e-38, 3.4028235e38, -3.4028235e38, -5.0, -0.5, 0.5,
     4.2e37, 8.6e37, 1.7e38, -0.99999994, 2.0**-24, 5e-8, math.inf, -math.inf, math.nan]
)  # fmt: skip


def emulated(function: Callable[[Tensor], Tensor], x: Tensor, folder: Path) -> Tensor:
    it = sample(function, x)
    schedule = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, folder)
    return got


def to_power(power: float, x: Tensor) -> Tensor:
    return x.pow(power)


def numbers(low: float, high: float, count: int = 1 << 20) -> Tensor:
    """Floats from low to high, both positive or both negative, as many of each size as there are."""
    first, last = torch.tensor([low, high]).view(torch.int32).tolist()
    places = torch.linspace(first, last, count, dtype=torch.float64).round().to(torch.int32)
    return places.view(torch.float32)


def in_last_places(got: Tensor, exact: Tensor) -> Tensor:
    """Errors in units of the last place of the exact result."""
    _, exponent = torch.frexp(exact.float())
    return (got.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent - 24)


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (torch.log, 0.7, 0.99999994),
        (torch.log, 1.0000001, 1.6),
        (torch.log, 1.2e-38, 3.4e38),
        (torch.log1p, 1e-30, 0.499),
        (torch.log1p, 0.501, 4e37),
        (torch.log1p, -1e-30, -0.9999),
    ],
)
def test_logarithms_err_by_less_than_the_last_place(
    function: Callable[[Tensor], Tensor], low: float, high: float, tmp_path: Path
) -> None:
    """The device library's err by up to 0.88 of it, and by 0.29 in the root of the mean square."""
    x = numbers(low, high)
    errors = in_last_places(emulated(function, x, tmp_path), function(x.double()))
    assert errors.max() < 0.95
    assert errors.square().mean().sqrt() < 0.31


@pytest.mark.parametrize("power", [0.25, 0.75, 1.25, 1.5])
def test_powers_by_quarters_err_by_little_more_than_the_last_place(
    power: float, tmp_path: Path
) -> None:
    x = numbers(1e-12, 1e12, 1 << 17)
    errors = in_last_places(emulated(lambda x: x.pow(power), x, tmp_path), x.double().pow(power))
    assert errors.max() < 2.5
    assert errors.square().mean().sqrt() < 0.65


def logistic(x: Tensor) -> Tensor:
    return x.sigmoid()


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def share_of_one(x: Tensor) -> Tensor:
    return 1 / (torch.exp(-x) + 1)


def by_a_number(number: float, x: Tensor) -> Tensor:
    return x / number


@pytest.mark.parametrize("function", [logistic, silu, share_of_one])
@pytest.mark.parametrize(("low", "high"), [(1e-30, 80.0), (-1e-30, -80.0)])
def test_logistic_functions_err_like_eagers(
    function: Callable[[Tensor], Tensor], low: float, high: float, tmp_path: Path
) -> None:
    x = numbers(low, high, 1 << 17)
    exact = function(x.double())
    ours = in_last_places(emulated(function, x, tmp_path), exact)
    eagers = in_last_places(function(x), exact)
    assert ours.max() < eagers.max() + 0.6
    assert ours.square().mean().sqrt() < 1.05 * eagers.square().mean().sqrt()


def infinite_over_logistic(x: Tensor) -> Tensor:
    return torch.where(x < 100, math.inf, x) / (1 + torch.exp(-x))


def test_infinities_over_what_eager_cannot_hold_are_no_numbers(tmp_path: Path) -> None:
    x = torch.tensor([-95.0, -89.0, -100.0, -110.0, -88.0, 3.0])
    got = emulated(infinite_over_logistic, x, tmp_path)
    torch.testing.assert_close(got, infinite_over_logistic(x), equal_nan=True)


@pytest.mark.parametrize("number", [3.0, 6.0, -0.07, 1e-3, 49.0, 8.0, 1.7e20])
def test_a_quotient_by_a_number_is_rounded_as_a_quotient(number: float, tmp_path: Path) -> None:
    x = torch.cat([numbers(1e-12, 1e12, 1 << 16), numbers(-1e-12, -1e12, 1 << 16)])
    got = emulated(partial(by_a_number, number), x, tmp_path)
    assert torch.equal(got, (x.double() / float(torch.tensor(number))).float())


def over_largest(x: Tensor) -> Tensor:
    """By what a row shares."""
    return x / x.amax(dim=1, keepdim=True)


def test_quotients_by_what_a_row_shares_are_rounded_as_quotients(tmp_path: Path) -> None:
    largest = numbers(1e-30, 2e38, 300)
    x = largest[:, None] * torch.cat(
        [numbers(1e-6, 1.0, 300), -numbers(1e-4, 100.0, 300), torch.ones(1)]
    )
    x = x.clamp(-3e38, None)
    exact = over_largest(x.double())
    errors = in_last_places(emulated(over_largest, x, tmp_path), exact)
    assert errors[exact.abs() > 1e-37].max() < 0.501


def test_what_a_row_shares_need_not_be_a_usual_number(tmp_path: Path) -> None:
    largest = torch.tensor([0.0, 1e-42, 1.3e-38, 9e37, 3.4e38, math.inf, math.nan])
    shares = torch.tensor([1.0, 0.5, 1e-3, -1.0, -7.0, 0.0]).repeat(100)
    negative = torch.tensor([-2.0, -3e38, -1e-41])
    x = torch.cat([largest[:, None] * shares, negative[:, None] * (1 + shares.abs())])
    it = sample(over_largest, x)
    schedule = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert "ca::divide_row(" in source[source.index('extern "C"') :]
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, over_largest(x), equal_nan=True, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("function", "printed"),
    [
        (logistic, "ca::sigmoid("),
        (silu, "ca::over_logistic("),
        (share_of_one, "ca::sigmoid("),
        (lambda x: x / (torch.exp(-x) + 2), "ca::truediv("),
        (lambda x: x / (torch.exp(x) + 1), "ca::truediv("),
        (lambda x: x / (-x + 1), "ca::truediv("),
        (partial(by_a_number, 6.0), "ca::divide_by("),
        (partial(by_a_number, 1e38), "ca::truediv("),
        (F.hardswish, "ca::divide_by("),
        (lambda x: x.view(10, 64).mean(1), "ca::divide_by("),
    ],
)
def test_divisions_without_a_slow_routine(
    function: Callable[[Tensor], Tensor], printed: str
) -> None:
    it = sample(lambda x: function(x), torch.empty(640))
    schedule = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    kernel = source[source.index('extern "C"') :]
    assert printed in kernel and kernel.count("ca::truediv(") == (printed == "ca::truediv(")


@pytest.mark.parametrize(
    "function",
    [
        torch.log,
        torch.log1p,
        *(partial(to_power, power) for power in (0.25, 0.75, 1.25, 1.5)),
        logistic,
        silu,
        *(partial(by_a_number, number) for number in (3.0, -0.07, 1e25)),
    ],
)
def test_what_is_not_usual_is_as_in_torch(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    got, want = emulated(function, SPECIAL.clone(), tmp_path), function(SPECIAL)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=3e-7, atol=0.0)
    numbers_only = ~want.isnan()
    assert torch.equal(got.signbit()[numbers_only], want.signbit()[numbers_only])


@pytest.mark.parametrize("power", [1.75, 0.7, 2.0, -0.75, 0.5])
def test_other_powers_are_the_librarys(power: float) -> None:
    it = sample(lambda x: x.pow(power), torch.empty(640))
    schedule = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    source, _ = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert "pow_quarters<" not in source[source.index('extern "C"') :]


@pytest.mark.parametrize(
    "function",
    [lambda x: torch.where(x > 0, x, True), lambda x: x + True, lambda x: x.clamp(min=False)],
)
def test_truths_among_numbers_are_numbers(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    x = torch.linspace(-2, 2, 1000)
    assert torch.equal(emulated(function, x, tmp_path), function(x))


def padded_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    inner = F.pad((x.exp() + 1.5).sin() * 2, (16, 0))
    return F.pad((inner.cos() + 1.5).sigmoid() * 2.25, (32, 0)), (x.exp() + 1.5).sin() * 2.25


def test_what_is_worked_out_within_branches_stays_there(tmp_path: Path) -> None:
    it = sample(padded_twice, torch.rand(40, 128))
    for number, schedule in enumerate(
        cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[:3]
    ):
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
        folder = tmp_path / str(number)
        folder.mkdir()
        for got, want in zip(
            cuda_emulator.run(source, plan, it.inputs, folder), it.want, strict=True
        ):
            torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)


def test_what_two_results_share_is_written_once(tmp_path: Path) -> None:
    it = sample(lambda x: (x.log() * 2, x.log() + 1, x.log().exp()), torch.rand(1000) + 0.5)
    schedule = cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)[0]
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    assert source[source.index('extern "C"') :].count("ca::log(") == 1
    for got, want in zip(
        cuda_emulator.run(source, plan, it.inputs, tmp_path), it.want, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
