"""The depthwise 7 x 7 convolution of a modern residual block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 256
CHANNELS = 128
SIDE = 56
SMALL = {"BATCH": 2, "CHANNELS": 4, "SIDE": 9}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
