"""Softmax of rows of a quarter of a million."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2_048
COLUMNS = 262_147
SMALL = {"ROWS": 3, "COLUMNS": 1_031}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
