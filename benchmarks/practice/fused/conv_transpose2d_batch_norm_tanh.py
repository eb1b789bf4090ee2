"""Transposed convolution, batch norm with fixed statistics, tanh: the last layer of an image generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 24
CHANNELS = 64
OUT_CHANNELS = 6
HEIGHT = 100
WIDTH = 112


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, out_channels, 4, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(out_channels)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.conv(x)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
