"""One 5x3x3 filter per channel of a volume."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 3
CHANNELS = 40
DEPTH = 36
HEIGHT = 72
WIDTH = 64


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, (5, 3, 3), padding=(2, 1, 1), groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
