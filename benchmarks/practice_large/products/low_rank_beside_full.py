"""A linear layer with an update of rank 16 beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 32_768
FEATURES = 4_096
RANK = 16
SMALL = {"TOKENS": 9, "FEATURES": 24, "RANK": 3}


class Model(nn.Module):
    def __init__(self, features: int, rank: int) -> None:
        super().__init__()
        self.full = nn.Linear(features, features, bias=False)
        self.down = nn.Linear(features, rank, bias=False)
        self.up = nn.Linear(rank, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.full(x) + 2.0 * self.up(self.down(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, RANK]
