"""A product of 16,384 rows with a square of 8,192."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16_384
WIDTH = 8_192
SMALL = {"ROWS": 9, "WIDTH": 16}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
