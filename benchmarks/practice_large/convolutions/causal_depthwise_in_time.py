"""A causal depthwise convolution of four steps, as state-space models have before their scan."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 5_120
LENGTH = 8_192
SMALL = {"BATCH": 2, "CHANNELS": 6, "LENGTH": 31}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 4, padding=3, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x)[..., : x.shape[-1]])


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
