"""Changing what input tensors hold between timed rounds."""

from __future__ import annotations

import pytest
import torch

from sandbox.accuracy import perturb_inputs as stirring
from sandbox.accuracy.perturb_inputs import FEW, REPLACED, perturb
from sandbox.task.specs import ITEM_SIZES

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


def drawn(dtype: torch.dtype, count: int = 4096) -> torch.Tensor:
    values = torch.randint(0, 2 if dtype == torch.bool else 200, (count,))
    return values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_move_and_stay_values_that_were_drawn(dtype: torch.dtype) -> None:
    before = drawn(dtype)
    after = before.clone()
    perturb([after], 3)
    assert (after != before).float().mean() > 0.3
    assert set(after.tolist()) <= set(before.tolist())


def test_few_elements_are_replaced_so_that_sums_change_too() -> None:
    before = torch.randn(4096, dtype=torch.float64)
    after = before.clone()
    perturb([after], 1)
    kept = torch.isin(before, after).sum().item()
    assert 4096 - REPLACED <= kept < 4096
    assert abs(after.sum() - before.sum()) > 1e-6


@pytest.mark.parametrize("count", [2, 3, 6, 40, FEW])
def test_few_elements_keep_their_values_however_often_they_move(count: int) -> None:
    """Overwritten by each other, six are one within some ten rounds, and the same from then on."""
    before = torch.arange(float(count))
    tensor = before.clone()
    for seed in range(200):
        earlier = tensor.clone()
        perturb([tensor], seed)
        assert not torch.equal(tensor, earlier)
    assert torch.equal(tensor.sort().values, before)


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    first, second, third = (torch.arange(1000.0) for _ in range(3))
    for tensor, seed in ((first, 7), (second, 7), (third, 8)):
        perturb([tensor], seed)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_memory_between_elements_stays_as_it_is() -> None:
    storage = torch.full((20, 10), -1.0)
    columns = storage[:, 2:5]
    columns.copy_(torch.arange(60.0).reshape(20, 3))
    perturb([columns], 5)
    assert (storage[:, :2] == -1).all() and (storage[:, 5:] == -1).all()
    assert (columns >= 0).all()
    assert not torch.equal(columns, torch.arange(60.0).reshape(20, 3))


@pytest.mark.parametrize("stride", [(2,), (200, 2), (1, 70)])
def test_any_layout_with_gaps(stride: tuple[int, ...]) -> None:
    shape = (64,) if len(stride) == 1 else (64, 50)
    memory = torch.full((20000,), -1.0)
    tensor = memory.as_strided(shape, stride)
    tensor.copy_(torch.arange(float(tensor.numel())).reshape(shape))
    before = tensor.clone()
    perturb([tensor], 6)
    assert (tensor >= 0).all()
    assert not torch.equal(tensor, before)
    assert (memory == -1).sum() == 20000 - tensor.numel()


def test_shared_elements_stay_shared_and_small_tensors_are_left_alone() -> None:
    row = torch.arange(100.0)
    wide = row.expand(8, 100)
    perturb([wide, torch.empty(0), torch.tensor(3.0)], 2)
    assert torch.equal(wide[0], wide[7])
    assert not torch.equal(row, torch.arange(100.0))


@pytest.mark.parametrize("count", [2, 5, 40, 4096])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_device_launches_does_what_the_host_does(
    dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among few elements places are drawn twice, of which the last counts."""
    host = drawn(dtype, count)
    device = host.clone()
    perturb([host], 9)
    monkeypatch.setattr(stirring, "_perturb_on_host", stirring._perturb_on_device)
    perturb([device], 9)
    assert torch.equal(device, host)


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_what_a_device_launches_moves_elements_of_any_type(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = torch.arange(64, dtype=torch.float32).to(getattr(torch, dtype))
    device = host.clone()
    perturb([host], 9)
    monkeypatch.setattr(stirring, "_perturb_on_host", stirring._perturb_on_device)
    perturb([device], 9)
    assert device.view(torch.uint8).tolist() == host.view(torch.uint8).tolist()


@pytest.mark.gpu
def test_a_device_does_what_the_host_does() -> None:
    host = torch.randn(64, 33)
    device = host.cuda()
    perturb([host], 11)
    perturb([device], 11)
    assert torch.equal(device.cpu(), host)
