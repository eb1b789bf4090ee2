"""A 7 x 7 stem with stride two on 512 images of 224 x 224."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 512
CHANNELS = 64
SIDE = 224
SMALL = {"BATCH": 2, "CHANNELS": 4, "SIDE": 16}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
