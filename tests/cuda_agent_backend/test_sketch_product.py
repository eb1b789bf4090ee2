"""Matrix products on the cpu: recognised among loops, right for every layout and size, NaN where eager has NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import Sample, run_cpu, sample
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen.api import analyse, schedules
from cuda_agent_backend.codegen.cpu.gemm import panels
from cuda_agent_backend.codegen.cpu.gemm_match import Product, product_of
from cuda_agent_backend.codegen.ir.failure import NotCovered


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def heads(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A projection stored head by head, as attention wants it."""
    return F.linear(x, w, b).view(2, 33, 4, 16).permute(0, 2, 1, 3).contiguous()


def normed(x: Tensor, w: Tensor, b: Tensor, h: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b) + h, (40,))


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
# sizes that are no multiple of a tile, so that tails of rows, columns and vectors all run
CASES: dict[str, Case] = {
    "plain": (lambda a, b: a @ b, (randn(61, 70), randn(70, 50))),
    "bias": (F.linear, (randn(61, 70), randn(50, 70), randn(50))),
    "bias and GELU": (lambda *a: F.gelu(F.linear(*a)), (randn(2, 31, 70), randn(45, 70), randn(45))),
    "stored head by head": (heads, (randn(2, 33, 70), randn(64, 70), randn(64))),
    "residual": (lambda x, w, h: F.linear(x, w) + h, (randn(61, 70), randn(45, 70), randn(61, 45))),
    "long sums": (F.linear, (randn(13, 1501), randn(19, 1501), randn(19))),
    "batches": (lambda a, b: torch.bmm(a, b) * 0.5, (randn(5, 33, 64), randn(5, 64, 41))),
    "both transposed": (lambda a, b: torch.relu(a.t() @ b.t()), (randn(70, 33), randn(45, 70))),
    "few rows": (lambda x, w: F.silu(F.linear(x, w)), (randn(3, 70), randn(517, 70))),
    "one column": (lambda x, w: torch.relu(x @ w), (randn(61, 70), randn(70, 1))),
    "layer norm behind it": (normed, (randn(61, 70), randn(40, 70), randn(40), randn(61, 40))),
    "scaled addend": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0).tanh(),
        (randn(45), randn(61, 70), randn(70, 45)),
    ),
    "two results": (lambda x, w: ((x @ w).sigmoid(), x @ w), (randn(61, 70), randn(70, 45))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_products_equal_eager(name: str, tmp_path: Path) -> None:
    function, inputs = CASES[name]
    case = sample(function, *inputs)
    for number, schedule in enumerate(schedules(case.analysis)[:3]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for got, want in zip(
            run_cpu(case.analysis, schedule, case.inputs, folder), case.want, strict=True
        ):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


def test_nan_and_infinity_stay_in_their_row_and_column(tmp_path: Path) -> None:
    x, w = randn(61, 70), randn(45, 70)
    x[7, 3], w[44, 5] = float("nan"), float("inf")
    case = sample(lambda x, w: F.linear(x, w) * 2, x, w)
    (got,) = run_cpu(case.analysis, schedules(case.analysis)[0], case.inputs, tmp_path)
    torch.testing.assert_close(got, case.want[0], rtol=1e-5, atol=1e-4, equal_nan=True)
    assert got[7].isnan().all() and got.isfinite().sum() == 60 * 44


def test_an_addend_times_zero_is_not_read(tmp_path: Path) -> None:
    nothing = torch.full((45,), float("nan"))
    case = sample(
        lambda b, x, w: torch.addmm(b, x, w, beta=0), nothing, randn(61, 70), randn(70, 45)
    )
    got = run_cpu(case.analysis, schedules(case.analysis)[0], case.inputs, tmp_path)
    assert got[0].isfinite().all()


def product(case: Sample) -> Product:
    found = product_of(case.analysis.kernels[0])
    assert found is not None
    return found


def test_sizes_and_layouts_are_read_off_the_loops() -> None:
    found = product(sample(*_flat(CASES["batches"])))
    assert (found.batches, found.m, found.n, found.k) == (5, 33, 41, 64)
    found = product(sample(*_flat(CASES["both transposed"])))
    assert (found.left.step, found.left.inner_step) == (1, 33)
    assert (found.right.step, found.right.inner_step) == (70, 1)


def _flat(case: Case) -> tuple[Any, ...]:
    return (case[0], *case[1])


def test_a_is_copied_only_where_a_tile_cannot_read_it_in_place() -> None:
    assert panels(product(sample(*_flat(CASES["bias"]))), 0, 8).left is None
    assert panels(product(sample(*_flat(CASES["both transposed"]))), 0, 8).left == "left_panels0"


def test_a_sum_of_products_within_rows_is_no_matrix_product() -> None:
    case = sample(lambda a, b: (a * b).sum(-1), randn(61, 70), randn(61, 70))
    assert product_of(case.analysis.kernels[0]) is None


def test_half_precision_products_are_left_to_the_library() -> None:
    a, b = randn(61, 70).bfloat16(), randn(70, 50).bfloat16()
    found = analyse(sample(lambda a, b: a @ b, a, b).task)
    assert isinstance(found, NotCovered) and "external kernel" in found.reason
