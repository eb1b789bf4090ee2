"""A convolution in time over half a gigabyte of sound's features, with GELU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
CHANNELS = 512
LENGTH = 12_001
SMALL = {"BATCH": 2, "CHANNELS": 6, "LENGTH": 41}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.conv(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
