"""The lower triangle of a square of 9,001 by a dense matrix: half of the work is for nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 9_001
COLUMNS = 8_192
SMALL = {"SIDE": 13, "COLUMNS": 5}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.tril(x) @ y


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIDE, SIDE), torch.randn(SIDE, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
