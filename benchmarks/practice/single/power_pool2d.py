"""Pooling by the root of the sum of squares, which several operators make up in eager mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
CHANNELS = 66
HEIGHT = 220
WIDTH = 240


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.lp_pool2d(x, 2.0, 3, stride=2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
