"""A 3 x 3 x 3 convolution of a network for scans, with leaky ReLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 2
CHANNELS = 32
SIDE = 144
SMALL = {"BATCH": 1, "CHANNELS": 3, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.conv(x), 0.01)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
