"""The largest of each row and where it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16_384
COLUMNS = 65_537
SMALL = {"ROWS": 8, "COLUMNS": 127}


class Model(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.max(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
