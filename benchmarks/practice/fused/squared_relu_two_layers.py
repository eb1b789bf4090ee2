"""Two linear layers with a squared rectifier between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 3_600
FEATURES = 900
MIDDLE = 3_700


class Model(nn.Module):
    def __init__(self, features: int, middle: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, middle, bias=False)
        self.second = nn.Linear(middle, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)).square())


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE]
