"""Softmax of 96 rows of 600,000: no row fits in one block's registers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 96
COLUMNS = 600_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
