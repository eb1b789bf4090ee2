"""Convolution, average pooling, tanh: the pooling goes into a larger strided kernel, or into the epilogue."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 14
CHANNELS = 40
OUT_CHANNELS = 72
HEIGHT = 144
WIDTH = 132


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.avg_pool2d(self.conv(x), 3))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
