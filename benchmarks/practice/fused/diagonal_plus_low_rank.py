"""Product with a diagonal matrix plus a product of two thin ones, all written out in full first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 5_000
FEATURES = 3_300
RANK = 12


class Model(nn.Module):
    def __init__(self, features: int, rank: int) -> None:
        super().__init__()
        self.diagonal = nn.Parameter(torch.randn(features))
        self.left = nn.Parameter(torch.randn(features, rank) / features**0.5)
        self.right = nn.Parameter(torch.randn(rank, features))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.diag(self.diagonal) + self.left @ self.right
        return x @ weight


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, RANK]
