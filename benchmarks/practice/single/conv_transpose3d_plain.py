"""Transposed 3x3x3 convolution with stride 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 2
CHANNELS = 36
OUT_CHANNELS = 20
DEPTH = 20
HEIGHT = 40
WIDTH = 36


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, out_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
