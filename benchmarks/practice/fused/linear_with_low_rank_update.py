"""A linear layer plus a scaled update of rank 16, which reads the input a second time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 5_500
FEATURES = 1_900
OUT_FEATURES = 1_700
RANK = 16


class Model(nn.Module):
    def __init__(self, features: int, out_features: int, rank: int, scale: float) -> None:
        super().__init__()
        self.base = nn.Linear(features, out_features)
        self.down = nn.Linear(features, rank, bias=False)
        self.up = nn.Linear(rank, out_features, bias=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.up(self.down(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES, RANK, 0.75]
