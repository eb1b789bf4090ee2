"""A 1x1 convolution with stride 2: three of four values are never read."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
CHANNELS = 190
OUT_CHANNELS = 380
HEIGHT = 120
WIDTH = 124


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
