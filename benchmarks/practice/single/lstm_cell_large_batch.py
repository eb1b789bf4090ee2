"""One step of an LSTM cell for six thousand states: two products, then gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 6_000
FEATURES = 512
STATE = 700


class Model(nn.Module):
    def __init__(self, features: int, state: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(features, state)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.cell(x, (hidden, memory))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES), torch.randn(BATCH, STATE), torch.randn(BATCH, STATE)]


def get_init_inputs() -> list[object]:
    return [FEATURES, STATE]
