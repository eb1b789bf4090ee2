"""Some elements of each row by their places, and a weight for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16_384
COLUMNS = 32_768
TAKEN = 4_096
SMALL = {"ROWS": 7, "COLUMNS": 53, "TAKEN": 11}


class Model(nn.Module):
    def forward(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        return torch.gather(x, 1, places) * weights


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(ROWS, COLUMNS),
        torch.randint(COLUMNS, (ROWS, TAKEN)),
        torch.rand(TAKEN),
    ]


def get_init_inputs() -> list[object]:
    return []
