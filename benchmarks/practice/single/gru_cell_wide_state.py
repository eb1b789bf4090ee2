"""One step of a GRU cell with a wide state for a small batch: the time of reading the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
FEATURES = 2_100
STATE = 3_000


class Model(nn.Module):
    def __init__(self, features: int, state: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(features, state)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.cell(x, hidden)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES), torch.randn(BATCH, STATE)]


def get_init_inputs() -> list[object]:
    return [FEATURES, STATE]
