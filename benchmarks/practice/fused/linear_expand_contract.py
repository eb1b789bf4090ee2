"""Two linear layers with a wide middle and nothing between them: one small layer would do."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 4_000
FEATURES = 1_300
MIDDLE = 5_200
OUT_FEATURES = 500


class Model(nn.Module):
    def __init__(self, features: int, middle: int, out_features: int) -> None:
        super().__init__()
        self.expand = nn.Linear(features, middle)
        self.contract = nn.Linear(middle, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(self.contract(self.expand(x)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE, OUT_FEATURES]
