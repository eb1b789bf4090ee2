"""Unpadded convolution, mean over all positions, then logsumexp: the mean of windows could be taken first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
CHANNELS = 32
OUT_CHANNELS = 96
HEIGHT = 120
WIDTH = 130


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.conv(x).mean(dim=(2, 3)), dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
