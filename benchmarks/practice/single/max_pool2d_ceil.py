"""Maximum over 4x2 windows without overlap; sizes do not divide, and the last windows are cut."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 18
CHANNELS = 75
HEIGHT = 213
WIDTH = 207


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, (4, 2), ceil_mode=True)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
