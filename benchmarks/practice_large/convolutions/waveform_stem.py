"""The first layer on half a minute of raw sound: one channel to 64, stride five."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 192
CHANNELS = 64
LENGTH = 480_000
SMALL = {"BATCH": 2, "CHANNELS": 4, "LENGTH": 203}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, channels, 10, stride=5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 1, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
