"""Sums vectors weighted by a Gaussian of the distance of points: the matrix of weights need not exist."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 7_000
COLUMNS = 6_500
FEATURES = 40
VECTORS = 8


class Model(nn.Module):
    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, left: Tensor, right: Tensor, vectors: Tensor) -> Tensor:
        squared = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * left @ right.T
        return torch.exp(-squared / (2 * self.width**2)) @ vectors


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(ROWS, FEATURES),
        torch.randn(COLUMNS, FEATURES),
        torch.randn(COLUMNS, VECTORS),
    ]


def get_init_inputs() -> list[object]:
    return [6.0]
