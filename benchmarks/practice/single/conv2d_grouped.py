"""A 3x3 convolution in five groups of 32 channels each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
CHANNELS = 160
OUT_CHANNELS = 240
HEIGHT = 90
WIDTH = 110
GROUPS = 5


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS, GROUPS]
