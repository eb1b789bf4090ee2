"""One filter of 31 taps per channel on long signals: every value is reused 31 times."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 8
CHANNELS = 360
LENGTH = 20_000


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 31, padding=15, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
