"""A plain 3x3x3 convolution of volumes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 2
CHANNELS = 24
OUT_CHANNELS = 40
DEPTH = 48
HEIGHT = 96
WIDTH = 80


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
