"""Maximum over 3x3x3 windows with stride 2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
CHANNELS = 32
DEPTH = 40
HEIGHT = 110
WIDTH = 100


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(x, 3, stride=2, padding=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
