"""A vocoder's transposed convolution by eight in time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
WIDE = 256
NARROW = 128
LENGTH = 8_192
SMALL = {"BATCH": 2, "WIDE": 6, "NARROW": 3, "LENGTH": 17}


class Model(nn.Module):
    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(wide, narrow, 16, stride=8, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.leaky_relu(x, 0.1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDE, LENGTH)]


def get_init_inputs() -> list[object]:
    return [WIDE, NARROW]
