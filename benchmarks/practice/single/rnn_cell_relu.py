"""One step of a plain recurrent cell with a rectifier: two products into one sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 5_000
FEATURES = 300
STATE = 1_100


class Model(nn.Module):
    def __init__(self, features: int, state: int) -> None:
        super().__init__()
        self.cell = nn.RNNCell(features, state, nonlinearity="relu")

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.cell(x, hidden)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES), torch.randn(BATCH, STATE)]


def get_init_inputs() -> list[object]:
    return [FEATURES, STATE]
