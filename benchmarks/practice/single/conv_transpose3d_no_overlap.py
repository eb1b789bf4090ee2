"""Kernel equal to the stride: every output has exactly one tap, a product with a reshuffle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 3
CHANNELS = 64
OUT_CHANNELS = 24
DEPTH = 14
HEIGHT = 30
WIDTH = 26


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, out_channels, (2, 3, 3), stride=(2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
