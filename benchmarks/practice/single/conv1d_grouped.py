"""A convolution in six groups with more output than input channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
CHANNELS = 192
OUT_CHANNELS = 288
LENGTH = 6_000
GROUPS = 6


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out_channels, 7, padding=3, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS, GROUPS]
