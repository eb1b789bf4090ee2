"""Facts of one row: what is a draw and what rounding, what lacks memory, what a backward pass gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.synthesis_check import faults
from benchmarks.synthesis_look import TWICE, by_rms, look

PROGRAM = """import torch
import torch.nn.functional as F
from torch import nn

DTYPE = torch.{dtype}
MADE = []
{more}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        MADE.append(self)
        {first}
        self.layer = nn.Linear(64, 32)
        self.to(DTYPE)

    def forward(self, x):
        x = torch.tanh(self.layer(x))
        {lines}


def get_inputs():
    return [torch.randn(48, 64, dtype=DTYPE)]


def get_init_inputs():
    return []
"""
ORDER = """
CALLS = []

def summed(x):
    \"\"\"Over rows, in an order that changes from call to call, as atomic additions have it.\"\"\"
    CALLS.append(1)
    rows = list(x)[:: 1 if len(CALLS) % 2 else -1]
    total = torch.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total
"""
NO_FLOAT64 = "if DTYPE == torch.float64: raise TypeError('no float64')"
NO_MEMORY = "if DTYPE == torch.float64: raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 9 GiB')"


def facts_of(
    folder: Path,
    lines: str,
    dtype: str = "float32",
    first: str = "pass",
    more: str = "",
    **other: Any,
) -> dict[str, Any]:
    code = PROGRAM.format(lines=lines, dtype=dtype, first=first, more=more)
    row = {"code": code, "device": "cpu", "training": False, "digests": False, "last": False}
    return look({**row, **other}, folder)


def kinds(facts: dict[str, Any], training: bool = False) -> set[str]:
    ops = ["nn.Linear", "torch.tanh"]
    return set(faults({"ops": ops, "dtype": "float32", "training": training}, facts))


@pytest.mark.parametrize("first", ["pass", NO_FLOAT64], ids=["in float64", "in its own dtype"])
def test_sums_in_another_order_draw_nothing_whatever_the_dtype(tmp_path: Path, first: str) -> None:
    """In half precision they differ by far more than two runs in float64 may."""
    for dtype in ("float32", "bfloat16"):
        found = facts_of(tmp_path, "return summed(x[:6])", dtype, first, ORDER)
        assert found["float64"] == (first == "pass") and not found["draws"], dtype
    program: dict[str, Any] = {"torch": torch}
    exec(ORDER, program)
    rows = torch.tanh(torch.randn(6, 32, generator=torch.Generator().manual_seed(1))).bfloat16()
    one, other = program["summed"](rows), program["summed"](rows)
    assert float((one - other).abs().max() / one.abs().max()) > TWICE


@pytest.mark.parametrize("first", ["pass", NO_FLOAT64], ids=["in float64", "in its own dtype"])
def test_a_draw_is_found_whatever_the_dtype(tmp_path: Path, first: str) -> None:
    assert facts_of(tmp_path, "return F.dropout(x, 0.1)", "bfloat16", first)["draws"]


def test_float64_without_memory_is_asked_for_again_and_done_without_at_last(tmp_path: Path) -> None:
    """A program that knows no float64 is done without it at once."""
    with pytest.raises(torch.OutOfMemoryError):
        facts_of(tmp_path, "return x", first=NO_MEMORY)
    assert facts_of(tmp_path, "return x", first=NO_MEMORY, last=True)["float64"] is False
    assert facts_of(tmp_path, "return x", first=NO_FLOAT64)["float64"] is False


def test_memory_that_runs_out_later_in_float64_is_no_fault_of_the_row(tmp_path: Path) -> None:
    lines = (
        "self.runs = getattr(self, 'runs', 0) + 1\n"
        "        if self.runs > 3 and x.dtype == torch.float64:\n"
        "            raise torch.OutOfMemoryError('CUDA out of memory')\n"
        "        return x"
    )
    with pytest.raises(torch.OutOfMemoryError):
        facts_of(tmp_path, lines)
    found = facts_of(tmp_path, lines, last=True)
    assert found["float64"] is False and kinds(found) == set()


def test_a_model_is_gone_before_the_next_one_is_built(tmp_path: Path) -> None:
    """On a GPU both would have to find room."""
    more = "import weakref\nOLD = []\n"
    first = "MADE.clear(); assert all(old() is None for old in OLD); OLD.append(weakref.ref(self))"
    assert facts_of(tmp_path, "return x", first=first, more=more)["float64"]


def test_digests_are_all_that_is_looked_for_where_no_more_is_wanted(tmp_path: Path) -> None:
    assert facts_of(tmp_path, "return x", digests=True).keys() == {"exact", "shape"}


def test_a_gradient_that_is_not_finite_is_found_where_the_row_is_trained(tmp_path: Path) -> None:
    lines = "return x + torch.sqrt((x - x).abs())"
    assert kinds(facts_of(tmp_path, lines)) == set()
    assert kinds(facts_of(tmp_path, lines, training=True), True) == {"not finite"}
    assert kinds(facts_of(tmp_path, "return x", training=True), True) == set()


def test_a_backward_pass_that_draws_is_found(tmp_path: Path) -> None:
    more = """
class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope * torch.rand_like(slope)
"""
    assert kinds(facts_of(tmp_path, "return Noisy.apply(x)", more=more)) == set()
    found = facts_of(tmp_path, "return Noisy.apply(x)", more=more, training=True)
    assert kinds(found, True) == {"stochastic"}


def test_a_trained_row_without_gradients_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no result has a gradient"):
        facts_of(tmp_path, "return x.detach()", training=True)


def test_results_are_apart_where_one_alone_is_not_finite() -> None:
    nan, inf = float("nan"), float("inf")
    some = torch.tensor([1.0, nan, inf])
    assert by_rms([some], [some]) == 0.0
    assert by_rms([torch.tensor([1.0, 2.0]), some], [torch.tensor([1.0, nan]), some]) == inf
    assert by_rms([some], [torch.tensor([1.0, 2.0, inf])]) == inf
    assert by_rms([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == 0.5
    assert by_rms([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 5.0])]) == pytest.approx(
        (0.5 / 17.0) ** 0.5
    )
