"""Products that are joined with other tensors are stored where they belong, by their own tails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import on_cuda, randn
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.kernel import temporaries

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()


def dense(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x, F.conv2d(x, w, padding=1).relu()], 1)


def cropped(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.cat([F.conv2d(x, w).relu(), r[:, :, 1:-1, 1:-1]], 1).tanh()


def two_heads(x: Tensor, w: Tensor, v: Tensor, b: Tensor) -> Tensor:
    return torch.cat([(x @ w).tanh(), x, (x @ v + b).sigmoid()], 1) * 2


def behind_a_token(token: Tensor, x: Tensor, w: Tensor, places: Tensor) -> Tensor:
    return torch.cat([token.expand(3, 1, 12), x @ w], 1) + places


def padded(x: Tensor, w: Tensor) -> Tensor:
    """All that is before the product is one number, whose dtype nothing says but the product."""
    return F.pad((x @ w).relu(), (0, 0, 1, 0), value=1.5).tanh()


def joined_twice(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.cat([torch.cat([r, x @ w], 0).relu(), r], 0)


def joined_thrice(x: Tensor, r: Tensor) -> Tensor:
    """Indices that Inductor keeps apart twice."""
    return torch.cat([torch.cat([torch.cat([r, x], 1).relu(), r], 1).tanh(), x], 1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "behind what it is of": (dense, (randn(2, 20, 12, 12), randn(12, 20, 3, 3)), 2),
    "behind twice as many channels": (dense, (randn(2, 24, 9, 9), randn(12, 24, 3, 3)), 2),
    "behind as many channels": (dense, (randn(2, 12, 9, 9), randn(12, 12, 3, 3)), 1),
    "before a part of another": (
        cropped, (randn(2, 20, 12, 12), randn(12, 20, 3, 3), randn(2, 8, 12, 12)), 2,
    ),
    "two products with a tensor between them": (
        two_heads, (randn(50, 20), randn(20, 16), randn(20, 13), randn(13)), 3,
    ),
    "behind a token, with places": (
        behind_a_token, (randn(1, 1, 12), randn(3, 9, 20), randn(20, 12), randn(10, 12)), 2,
    ),
    "behind a row of one number": (padded, (randn(50, 20), randn(20, 16)), 2),
    "in a join of joins": (joined_twice, (randn(50, 20), randn(20, 16), randn(13, 16)), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_products_are_written_once(name: str, tmp_path: Path) -> None:
    function, inputs, kernels = CASES[name]
    it = on_cuda(function, *inputs)
    region, found = it.analysis.region, it.analysis.kernels
    assert len(found) == kernels and not temporaries(region, found)
    ways: dict[tuple[object, ...], Any] = {}
    for schedule in cuda.schedules(region, found, DEVICE):
        ways.setdefault(tuple(dict(k)["sketch"] for k in schedule.kernels), schedule)
    assert any("contract" in way for way in ways)
    for number, schedule in enumerate(ways.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        source, plan = cuda.emit(region, found, schedule, DEVICE)
        (got,) = cuda_emulator.run(source, plan, it.inputs, folder)
        torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, r: torch.cat([torch.cat([r, x], 0).relu(), r], 0), (randn(50, 16), randn(13, 16))),
        (joined_thrice, (randn(50, 16), randn(50, 7))),
    ],
)  # fmt: skip
def test_joins_of_joins_are_one_kernel(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], tmp_path: Path
) -> None:
    it = on_cuda(function, *inputs)
    region, found = it.analysis.region, it.analysis.kernels
    assert len(found) == 1
    source, plan = cuda.emit(region, found, cuda.schedules(region, found, DEVICE)[0], DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0])


def swapped(x: Tensor, w: Tensor) -> Tensor:
    a, b = (x @ w).chunk(2, 1)
    return torch.cat([b.relu(), a.tanh()], 1)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (swapped, (randn(50, 20), randn(20, 16))),
        (lambda x, w: F.pad(x @ w, (0, 0, 1, 2)), (randn(3, 9, 20), randn(20, 12))),
        (lambda x, w: torch.cat([x @ w] * 2, 1), (randn(50, 20), randn(20, 16))),
    ],
)
def test_what_takes_as_many_kernels_or_reads_a_product_twice_is_as_it_was(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    found = on_cuda(function, *inputs).analysis
    assert len(found.kernels) == 2
    assert len(temporaries(found.region, found.kernels)) == 1
