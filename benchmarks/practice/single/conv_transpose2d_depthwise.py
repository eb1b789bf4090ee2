"""Transposed convolution channel by channel: learned upsampling, bound by memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 14
CHANNELS = 120
HEIGHT = 96
WIDTH = 88


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
