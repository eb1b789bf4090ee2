"""Linear layer to 130 classes at a temperature, then log-softmax: whole rows fit in one tile."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 50_000
FEATURES = 620
CLASSES = 130


class Model(nn.Module):
    def __init__(self, features: int, classes: int, temperature: float) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.linear(x) / self.temperature, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, CLASSES, 0.7]
