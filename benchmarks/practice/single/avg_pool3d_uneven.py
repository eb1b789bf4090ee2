"""Average over 4x3x3 windows that overlap in depth only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 3
CHANNELS = 36
DEPTH = 48
HEIGHT = 120
WIDTH = 104


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool3d(x, (4, 3, 3), stride=(2, 3, 3))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
