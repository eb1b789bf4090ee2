"""Running products of one minus a small rate, down to how much is left of each row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 300_000
COLUMNS = 2_048
SMALL = {"ROWS": 6, "COLUMNS": 40}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumprod(1.0 - 0.01 * x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.rand(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
