"""A 9x9 kernel with stride 3 on four channels: the inner dimension is in the kernel, not in the channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
CHANNELS = 4
OUT_CHANNELS = 72
HEIGHT = 380
WIDTH = 300


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 9, stride=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
