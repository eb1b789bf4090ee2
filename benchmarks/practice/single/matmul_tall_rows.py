"""Many short rows times a small matrix: reading and writing the rows takes longer than the arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 600_001
INNER = 96
COLUMNS = 40


class Model(nn.Module):
    def forward(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rows @ weight


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
