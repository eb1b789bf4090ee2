"""Transposed convolution that makes signals eight times longer: every output has two taps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
CHANNELS = 128
OUT_CHANNELS = 64
LENGTH = 5_000


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(channels, out_channels, 16, stride=8, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
