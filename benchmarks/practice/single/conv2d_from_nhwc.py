"""A 3x3 convolution of images that come with the channels innermost, and go so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
CHANNELS = 56
OUT_CHANNELS = 88
HEIGHT = 128
WIDTH = 136


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, HEIGHT, WIDTH, CHANNELS)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
