"""A product whose sides are all odd, the right one transposed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 10_007
INNER = 8_209
COLUMNS = 9_001
SMALL = {"ROWS": 9, "INNER": 13, "COLUMNS": 7}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y.T


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER)]


def get_init_inputs() -> list[object]:
    return []
