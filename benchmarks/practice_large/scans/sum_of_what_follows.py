"""For each element the sum of all that follow it in its row, itself left out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 20_000
COLUMNS = 32_768
SMALL = {"ROWS": 5, "COLUMNS": 77}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1).cumsum(dim=1).flip(1) - x


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
