"""Outputs that hold positions: ties are free, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from sandbox.accuracy.positions import ExtremumCheck, OrderCheck
from sandbox.accuracy.rule import compare

NAN = float("nan")


@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_positions_of_equal_values_pass_and_of_smaller_ones_fail(dim: int | None) -> None:
    operand = torch.tensor([[1.0, 5.0, 5.0], [5.0, 2.0, 5.0]])
    eager = operand.argmax() if dim is None else operand.argmax(dim)
    flipped = operand.flip(0, 1)
    last = operand.shape[dim] - 1 if dim is not None else operand.numel() - 1
    found = last - flipped.argmax() if dim is None else (last - flipped.argmax(dim)).flip(0)
    check = {0: ExtremumCheck(operand.double(), dim, True, True)}
    assert not torch.equal(found, eager)
    assert compare([found], [eager], [eager], check).passes
    assert not compare([torch.zeros_like(eager)], [eager], [eager], check).passes
    assert not compare([eager + 100], [eager], [eager], check).passes


def test_positions_in_computed_operands_may_differ_within_rounding() -> None:
    operand = torch.tensor([1.0, 1.0 + 1e-9, 0.5], dtype=torch.float64)
    eager, found = torch.tensor(1), torch.tensor(0)
    near = ExtremumCheck(operand, 0, True, False)
    assert near.wrong(found, eager) == ""
    assert ExtremumCheck(operand, 0, True, True).wrong(found, eager)
    assert near.wrong(torch.tensor(2), eager)


def test_positions_of_nan_pass() -> None:
    check = ExtremumCheck(torch.tensor([1.0, NAN, NAN], dtype=torch.float64), 0, True, True)
    assert check.wrong(torch.tensor(2), torch.tensor(1)) == ""
    assert check.wrong(torch.tensor(0), torch.tensor(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("dim", [0, 1])
def test_sorted_positions_may_differ_among_equal_values_only(dtype: torch.dtype, dim: int) -> None:
    operand = torch.tensor([[3, 1, 3, 2], [0, 2**60, 2**60, 2**60 + 256]], dtype=dtype)
    operand = operand if dim else operand.t()
    check = OrderCheck(operand, dim)
    one, other = (
        torch.tensor([[1, 3, 0, 2], [0, 1, 2, 3]]),
        torch.tensor([[1, 3, 2, 0], [0, 2, 1, 3]]),
    )
    wrong = torch.tensor([[1, 3, 0, 2], [0, 1, 3, 2]])
    eager, free, bad = (t if dim else t.t() for t in (one, other, wrong))
    assert check.wrong(eager, eager) == ""
    assert check.wrong(free, eager) == ""
    assert check.wrong(bad, eager).startswith("2 positions of other values, first at")


def test_a_sorted_position_comes_once_in_a_row_and_lies_within_it() -> None:
    check = OrderCheck(torch.tensor([[7.0, 7.0, 7.0]]), -1)
    eager = torch.tensor([[0, 1, 2]])
    assert check.wrong(torch.tensor([[2, 0, 1]]), eager) == ""
    assert "twice" in check.wrong(torch.tensor([[0, 0, 1]]), eager)
    assert "outside" in check.wrong(torch.tensor([[0, 1, 3]]), eager)
    assert "outside" in check.wrong(torch.tensor([[0, -1, 2]]), eager)


def test_selected_positions_of_nan_are_free_among_each_other() -> None:
    check = OrderCheck(torch.tensor([NAN, 1.0, NAN, 0.0]), 0)
    assert check.wrong(torch.tensor([2, 0]), torch.tensor([0, 2])) == ""
    assert check.wrong(torch.tensor([2, 1]), torch.tensor([0, 2]))


def test_positions_in_a_number_are_zero() -> None:
    check = OrderCheck(torch.tensor(3.0), 0)
    assert check.wrong(torch.tensor(0), torch.tensor(0)) == ""
    assert "outside" in check.wrong(torch.tensor(1), torch.tensor(0))
