"""The 3 x 3 convolution of a residual network's first stages at batch 256, with ReLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
CHANNELS = 256
SIDE = 56
SMALL = {"BATCH": 2, "CHANNELS": 4, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
