"""Convolutions over a text line, columns as steps of a GRU, and log-probabilities of characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 6
CHANNELS = 40
HEIGHT = 32
WIDTH = 240
STATE = 144
CHARACTERS = 75


class Model(nn.Module):
    def __init__(self, channels: int, height: int, state: int, characters: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.gru = nn.GRU(2 * channels * (height // 4), state, batch_first=True)
        self.head = nn.Linear(state, characters)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.convs(x).permute(0, 3, 1, 2).flatten(2)
        return torch.log_softmax(self.head(self.gru(columns)[0]), dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 1, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, HEIGHT, STATE, CHARACTERS]
