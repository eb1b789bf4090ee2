"""Kernel, stride, padding and dilation all differ between the two directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 18
CHANNELS = 44
OUT_CHANNELS = 70
HEIGHT = 230
WIDTH = 160


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            channels, out_channels, (7, 3), stride=(3, 1), padding=(2, 3), dilation=(1, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
