"""A dilated 3 x 3 convolution of a network that segments streets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
CHANNELS = 256
HEIGHT = 128
WIDTH = 256
SMALL = {"BATCH": 2, "CHANNELS": 4, "HEIGHT": 15, "WIDTH": 17}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=6, dilation=6)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
