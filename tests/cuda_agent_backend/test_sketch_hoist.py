"""What is the same for a whole row is worked out before its loops."""

from __future__ import annotations

import pytest
import torch
from sketch_kit import on_cuda
from torch.nn import functional as F

from cuda_agent_backend.codegen.cuda.rows.prepare.hoist import hoist_row_values
from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage


def kernel_of(function: object, *inputs: torch.Tensor) -> Kernel:
    (kernel,) = on_cuda(function, *inputs).analysis.kernels  # type: ignore[arg-type]
    return kernel


def operations(stages: list[RowStage]) -> list[str]:
    return [i.op for stage in stages for i in stage.body.walk()]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (96,)),
        lambda x: F.normalize(x, dim=1) + 1,
    ],
)
def test_no_loop_over_a_row_has_a_root_or_a_power(function: object) -> None:
    costly = {"rsqrt", "sqrt", "exp"}
    kernel = kernel_of(function, torch.randn(4, 96))
    after = hoist_row_values(kernel)
    assert costly & set(operations([s for s in kernel.stages if s.inner]))
    assert not costly & set(operations([s for s in after.stages if s.inner]))
    assert costly & set(operations([s for s in after.stages if not s.inner]))


def test_equal_values_of_two_loops_are_one() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = torch.rsqrt(x.square().mean(1, True) + 1)
        return x * scale, (x * scale).sum(1)

    after = hoist_row_values(kernel_of(two, torch.randn(4, 96)))
    assert operations(list(after.stages)).count("rsqrt") == 1


def test_what_varies_along_the_row_stays() -> None:
    kernel = kernel_of(lambda x: torch.exp(x - x.amax(1, True)).sum(1), torch.randn(4, 96))
    assert hoist_row_values(kernel) == kernel
