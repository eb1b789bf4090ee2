"""Running sums along rows of 131,072."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 8_192
COLUMNS = 131_072
SMALL = {"ROWS": 4, "COLUMNS": 301}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
