"""Running sums of 130 long rows: rows have to be split and joined."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 130
COLUMNS = 450_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
