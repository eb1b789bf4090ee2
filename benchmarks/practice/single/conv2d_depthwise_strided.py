"""Two 5x5 filters per channel with stride 2: each channel gives two."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 24
CHANNELS = 96
HEIGHT = 150
WIDTH = 210


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, 5, stride=2, padding=2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
