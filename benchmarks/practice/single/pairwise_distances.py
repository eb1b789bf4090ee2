"""Euclidean distances of all pairs of two point sets: a matrix product with a square root after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 8_000
COLUMNS = 7_500
FEATURES = 60


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.cdist(left, right)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES), torch.randn(COLUMNS, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
