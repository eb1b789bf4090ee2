"""A million rows of 512 to 64 features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 1_048_583
INNER = 512
COLUMNS = 64
SMALL = {"ROWS": 33, "INNER": 8, "COLUMNS": 5}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
