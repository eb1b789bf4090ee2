"""A matrix of 4.3 GB by one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 32_771
COLUMNS = 32_768
SMALL = {"ROWS": 17, "COLUMNS": 31}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.mv(x, y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
