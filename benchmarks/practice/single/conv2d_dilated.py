"""A 3x3 kernel spread over 13x13 positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 6
CHANNELS = 72
HEIGHT = 200
WIDTH = 180
DILATION = 6


class Model(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, DILATION]
