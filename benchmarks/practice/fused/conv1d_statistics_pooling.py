"""Convolution, rectifier, then mean and deviation over time side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 30
CHANNELS = 80
OUT_CHANNELS = 256
LENGTH = 3_000


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out_channels, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x))
        return torch.cat([y.mean(dim=2), y.std(dim=2)], dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
