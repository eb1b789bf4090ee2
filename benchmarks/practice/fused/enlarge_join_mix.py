"""Bilinear enlargement joined with a second tensor along channels, then a 1x1 convolution and a rectifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 64
SKIP_CHANNELS = 40
OUT_CHANNELS = 48
HEIGHT = 60
WIDTH = 64


class Model(nn.Module):
    def __init__(self, channels: int, skip_channels: int, out_channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels + skip_channels, out_channels, 1)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        large = F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)
        return F.relu(self.mix(torch.cat([large, skip], dim=1)))


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH),
        torch.randn(BATCH, SKIP_CHANNELS, 2 * HEIGHT, 2 * WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return [CHANNELS, SKIP_CHANNELS, OUT_CHANNELS]
