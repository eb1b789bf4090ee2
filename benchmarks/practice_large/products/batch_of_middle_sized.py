"""Four thousand products of 256 by 192 by 256."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 4_096
ROWS = 256
INNER = 192
COLUMNS = 256
SMALL = {"BATCH": 3, "ROWS": 8, "INNER": 6, "COLUMNS": 7}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x, y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, ROWS, INNER), torch.randn(BATCH, INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
