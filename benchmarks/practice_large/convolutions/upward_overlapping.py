"""A transposed 4 x 4 convolution with stride two, whose windows overlap, and ReLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
WIDE = 128
NARROW = 64
SIDE = 96
SMALL = {"BATCH": 2, "WIDE": 4, "NARROW": 3, "SIDE": 6}


class Model(nn.Module):
    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDE, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [WIDE, NARROW]
