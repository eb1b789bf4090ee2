"""Differences of two products of the same factor leave nothing where eager leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sketch_kit import randn, run_cpu, sample
from torch import Tensor

from cuda_agent_backend.codegen.analysis.equal_terms import ROUNDED, round_equal_terms
from cuda_agent_backend.codegen.cpu import schedules as cpu_schedules

Form = Callable[[Tensor, Tensor], Tensor]
FOUND: dict[str, tuple[Form, int]] = {
    "two products": (lambda x, y: x * y.exp() - y * x, 2),
    "a product and a quotient": (lambda x, y: -x * (1 / y) + x / y, 1),
    "one sign in a factor": (lambda x, y: x * -y + y * (x + 1), 2),
    "a sum": (lambda x, y: x * y + x * y.exp(), 0),
    "no sum but two signs": (lambda x, y: x * y - x * -y, 0),
    "other factors": (lambda x, y: x * x - y * y, 0),
    "one product, twice": (lambda x, y: x * y - x * y, 0),
    "no second product": (lambda x, y: x * y - x, 0),
    "quotients alone": (lambda x, y: x / y - x / 3.0, 0),
    "a constant in common": (lambda x, y: 3.0 * x - 3.0 * y, 0),
}


@pytest.mark.parametrize("name", FOUND)
def test_products_of_a_difference_with_a_common_factor_are_found(name: str) -> None:
    form, count = FOUND[name]
    kernels = map(round_equal_terms, sample(form, randn(5, 7), randn(5, 7)).analysis.kernels)
    walked = [i.op for k in kernels for s in k.stages for i in s.body.walk()]
    assert walked.count(ROUNDED) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_terms_leave_nothing_as_in_eager(dtype: torch.dtype, tmp_path: Path) -> None:
    """One over a number is not exact, but for powers of two: eager leaves nothing in most places, if not in all."""
    x, y = (randn(3, n).to(dtype)[:, :67] for n in (67, 68))
    it = sample(lambda x, y: (-x * (1 / y) + x / y, x * (y + 1) - (1 + y) * x), x, y)
    own = cpu_schedules.schedules(it.analysis.kernels, 8, it.analysis.bytes_moved, 1 << 30)[0]
    for found, want in zip(run_cpu(it.analysis, own, it.inputs, tmp_path), it.want, strict=True):
        assert (want == 0).sum() > 50
        assert torch.equal(found, want)
