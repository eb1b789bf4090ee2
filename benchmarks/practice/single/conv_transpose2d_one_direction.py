"""Widens images four times in one direction only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 12
CHANNELS = 56
OUT_CHANNELS = 40
HEIGHT = 100
WIDTH = 60


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            channels, out_channels, (3, 8), stride=(1, 4), padding=(1, 2), bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
