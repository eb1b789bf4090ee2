"""Largest value so far along each row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 5_000
COLUMNS = 9_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cummax(x, dim=1).values


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
