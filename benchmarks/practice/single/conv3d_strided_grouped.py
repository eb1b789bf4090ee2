"""Four groups and stride 2 in all three directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 6
CHANNELS = 48
OUT_CHANNELS = 96
DEPTH = 30
HEIGHT = 70
WIDTH = 66


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, 3, stride=2, padding=1, groups=4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
