"""Loop bodies that hold plain numbers, or counts that are no integers, have kernels that are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from splice_kit import Capture, backend_for, options_in
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.partition.report import HIT

pytestmark = pytest.mark.usefixtures("forced_kernels_end")


def pooling_gradient(x: Tensor) -> Tensor:
    image = x.reshape(4, 4, 32, 32)
    sums = F.avg_pool2d(image, 2, 2)
    return torch.ops.aten.avg_pool2d_backward(
        sums, image, [2, 2], [2, 2], [0, 0], False, True, None
    )


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "std": lambda x: torch.std(x, -1),
    "correction of a float": lambda x: torch.var(x, -1, correction=1.0),
    "correction of a half": lambda x: torch.var(x, 0, correction=0.5),
    "backward of average pooling": pooling_gradient,
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_have_the_type_of_what_they_meet(name: str, tmp_path: Path) -> None:
    seen = Capture()
    x = torch.randn(64, 256)
    made = torch.compile(CASES[name], backend=backend_for(options_in(tmp_path, force=1), seen))(x)
    (report,) = seen.reports
    assert HIT in [region.status for region in report.regions], report
    torch.testing.assert_close(made, CASES[name](x))
