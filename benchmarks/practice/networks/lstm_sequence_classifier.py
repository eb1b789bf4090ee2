"""Two LSTM layers over 72 steps and a linear layer on the last state: bound by its steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
STEPS = 72
FEATURES = 90
STATE = 320
CLASSES = 9


class Model(nn.Module):
    def __init__(self, features: int, state: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, state, num_layers=2, batch_first=True)
        self.head = nn.Linear(state, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, STEPS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, STATE, CLASSES]
