"""Largest value of each of three million rows of 20."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 3_000_000
COLUMNS = 20


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.amax(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
