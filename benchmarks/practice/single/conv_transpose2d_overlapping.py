"""Odd kernel with stride 2: outputs have four, six or nine taps by position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 10
CHANNELS = 72
OUT_CHANNELS = 48
HEIGHT = 90
WIDTH = 75


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            channels, out_channels, 5, stride=2, padding=2, output_padding=1
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
