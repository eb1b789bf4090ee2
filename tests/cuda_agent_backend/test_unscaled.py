"""Constants that scale operands of a sum of products on cuda: on the results where that loses nothing."""

from __future__ import annotations

import math
from pathlib import Path

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample

from cuda_agent_backend.codegen.analysis.gemm import gemm_of
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.lowering.lower import lower
from cuda_agent_backend.codegen.transform.fusion import group
from cuda_agent_backend.codegen.transform.hoist_scale import with_scale_hoisted

DEVICE = cuda.DeviceFacts()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[-1]))


def scaled(left: float, right: float | None = None, size: float = 1.0) -> Sample:
    """A product of operands that are scaled, whose elements are of about 1 / ``size``."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * left) @ (w if right is None else w * right)

    return sample(function, randn(61, 70) / size, randn(70, 50) / size, target="cuda")


@pytest.mark.parametrize(
    ("left", "right"), [(3.5, None), (-3.0, 7.0), (2.0**20, None), (-1.0, None)]
)
def test_moderate_factors_scale_the_results(left: float, right: float | None) -> None:
    region = lower(scaled(left, right).task)
    (kernel,) = map(with_scale_hoisted, group(region))
    assert gemm_of(kernel) is not None
    assert len(kernel.stages) == 2


@pytest.mark.parametrize(("left", "right"), [(0.001, None), (-0.3, 0.7), (2.0**-20, None)])
def test_factors_below_one_are_part_of_the_operand(left: float, right: float | None) -> None:
    (kernel,) = map(with_scale_hoisted, group(lower(scaled(left, right).task)))
    found = gemm_of(kernel)
    assert found is not None and found.constant == left * (right or 1.0)
    assert len(kernel.stages) == 1


def test_of_two_factors_that_below_one_stays() -> None:
    (kernel,) = map(with_scale_hoisted, group(lower(scaled(-3.0, 0.7).task)))
    found = gemm_of(kernel)
    assert found is not None and found.constant == 0.7
    assert len(kernel.stages) == 2


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1e-30, 1e-30),  # whose product vanishes
        (1e30, 1e-30),
        (2.0**21, None),
        (2.0**-21, None),
        (0.0, None),
        (math.inf, None),
        (math.nan, None),
    ],
)
def test_other_factors_stay_with_their_operands(left: float, right: float | None) -> None:
    region = lower(scaled(left, right).task)
    kernels = group(region)
    assert tuple(map(with_scale_hoisted, kernels)) == kernels


def test_factors_whose_product_vanishes_are_as_in_eager(tmp_path: Path) -> None:
    it = scaled(1e-30, 1e-30, size=1e-29)
    region, kernels = it.analysis.region, it.analysis.kernels
    source, plan = cuda.emit(region, kernels, cuda.schedules(region, kernels, DEVICE)[0], DEVICE)
    (got,) = cuda_emulator.run(source, plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-7)
