"""Two 1x1 convolutions with nothing between them, then a norm over channels: they are one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 10
CHANNELS = 96
MIDDLE = 400
OUT_CHANNELS = 64
HEIGHT = 100
WIDTH = 108


class Model(nn.Module):
    def __init__(self, channels: int, middle: int, out_channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, middle, 1)
        self.second = nn.Conv2d(middle, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.second(self.first(x)), dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, MIDDLE, OUT_CHANNELS]
