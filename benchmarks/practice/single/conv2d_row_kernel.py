"""A 1x15 kernel along the rows of wide images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 5
CHANNELS = 60
HEIGHT = 180
WIDTH = 700


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, (1, 15), padding=(0, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
