"""A 3 x 3 convolution in 32 groups."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 192
CHANNELS = 256
GROUPS = 32
SIDE = 56
SMALL = {"BATCH": 2, "CHANNELS": 8, "GROUPS": 2, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, GROUPS]
