"""A 1x5x3 kernel on clips: frame by frame, so really two-dimensional."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 4
CHANNELS = 32
OUT_CHANNELS = 36
DEPTH = 20
HEIGHT = 90
WIDTH = 80


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, (1, 5, 3), padding=(0, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
