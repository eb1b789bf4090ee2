"""Bytes to floats by a scale for each row; there are more elements than 32 bits count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 262_147
COLUMNS = 8_200
SMALL = {"ROWS": 5, "COLUMNS": 37}


class Model(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x.float() * scale[:, None]


def get_inputs() -> list[Tensor]:
    return [
        torch.randint(-128, 128, (ROWS, COLUMNS), dtype=torch.int8),
        torch.rand(ROWS),
    ]


def get_init_inputs() -> list[object]:
    return []
