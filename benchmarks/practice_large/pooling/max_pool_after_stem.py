"""A stem's overlapping max pooling at a training batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
CHANNELS = 64
SIDE = 225
SMALL = {"BATCH": 2, "CHANNELS": 3, "SIDE": 15}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, stride=2, padding=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return []
