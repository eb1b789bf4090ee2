"""Averages over time and space of clips."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
CHANNELS = 64
FRAMES = 32
SIDE = 112
SMALL = {"BATCH": 2, "CHANNELS": 3, "FRAMES": 6, "SIDE": 8}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool3d(x, (2, 3, 3), stride=(2, 2, 2), padding=(0, 1, 1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, FRAMES, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return []
