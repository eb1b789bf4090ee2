"""One 9x9 filter per channel: 81 taps on every value, and no product to make of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 10
CHANNELS = 144
HEIGHT = 130
WIDTH = 130


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 9, padding=4, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
