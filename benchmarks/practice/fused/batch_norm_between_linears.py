"""Batch norm with fixed statistics between a rectified layer and another: it folds into the second one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 6_500
FEATURES = 700
MIDDLE = 2_000
OUT_FEATURES = 900


class Model(nn.Module):
    def __init__(self, features: int, middle: int, out_features: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, middle)
        self.norm = nn.BatchNorm1d(middle)
        self.second = nn.Linear(middle, out_features)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(F.relu(self.first(x))))


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE, OUT_FEATURES]
