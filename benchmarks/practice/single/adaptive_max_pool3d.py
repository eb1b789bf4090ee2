"""Maxima over a 7x9x5 grid of uneven windows of a volume."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 48
DEPTH = 30
HEIGHT = 75
WIDTH = 66


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool3d(x, (7, 9, 5))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
