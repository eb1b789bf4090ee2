"""Standard deviations of long columns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 500_009
COLUMNS = 2_048
SMALL = {"ROWS": 203, "COLUMNS": 6}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.std(x, dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
