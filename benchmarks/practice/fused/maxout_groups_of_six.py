"""Linear layer, then the largest of every six outputs less a threshold, rectified."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 7_000
FEATURES = 800
UNITS = 450


class Model(nn.Module):
    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 6 * units)
        self.threshold = nn.Parameter(torch.rand(units))

    def forward(self, x: Tensor) -> Tensor:
        pieces = self.linear(x).unflatten(1, (-1, 6))
        return F.relu(pieces.amax(dim=2) - self.threshold)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, UNITS]
