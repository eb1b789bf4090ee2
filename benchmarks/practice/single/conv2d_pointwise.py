"""A 1x1 convolution on images of odd size: a matrix product with rows that are not aligned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 14
CHANNELS = 210
OUT_CHANNELS = 330
HEIGHT = 111
WIDTH = 97


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
