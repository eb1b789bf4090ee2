"""All 5x5 patches of images as columns: each value is written up to 25 times."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 12
CHANNELS = 10
HEIGHT = 140
WIDTH = 150


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, 5, padding=2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
