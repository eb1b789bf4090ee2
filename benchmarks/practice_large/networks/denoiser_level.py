"""One level of a denoising network: norm, SiLU and convolution twice, with a time's shift."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
CHANNELS = 128
SIDE = 256
GROUPS = 32
STEPS = 512
SMALL = {"BATCH": 2, "CHANNELS": 8, "SIDE": 6, "GROUPS": 4, "STEPS": 12}


class Model(nn.Module):
    def __init__(self, channels: int, groups: int, steps: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.shift = nn.Linear(steps, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.mixes[0](F.silu(self.norms[0](x)))
        y = y + self.shift(F.silu(time))[:, :, None, None]
        return x + self.mixes[1](F.silu(self.norms[1](y)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE), torch.randn(BATCH, STEPS)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, GROUPS, STEPS]
