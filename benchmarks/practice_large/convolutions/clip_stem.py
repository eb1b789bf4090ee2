"""A stem of 3 x 7 x 7 on clips of 32 frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 12
CHANNELS = 64
FRAMES = 32
SIDE = 224
SMALL = {"BATCH": 2, "CHANNELS": 3, "FRAMES": 5, "SIDE": 16}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, channels, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, FRAMES, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
