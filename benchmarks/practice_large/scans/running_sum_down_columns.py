"""Running sums along the leading axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 65_537
COLUMNS = 6_000
SMALL = {"ROWS": 103, "COLUMNS": 7}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
