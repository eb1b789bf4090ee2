"""A depthwise 5 x 5 convolution with stride two and hard swish."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 384
CHANNELS = 72
SIDE = 113
SMALL = {"BATCH": 2, "CHANNELS": 4, "SIDE": 9}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 5, 2, 2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(self.conv(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
