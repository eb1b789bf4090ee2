"""A plain 3x3 convolution whose channels and sizes are divisible by nothing useful."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 12
CHANNELS = 67
OUT_CHANNELS = 93
HEIGHT = 123
WIDTH = 141


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
