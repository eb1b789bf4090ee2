"""Dilated transposed convolution with stride 1: a plain convolution with the kernel turned round."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 10
CHANNELS = 70
OUT_CHANNELS = 50
LENGTH = 11_000


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(channels, out_channels, 6, dilation=9, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
