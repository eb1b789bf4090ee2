"""A transposed convolution that doubles the side without overlap."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 32
WIDE = 256
NARROW = 128
SIDE = 128
SMALL = {"BATCH": 2, "WIDE": 6, "NARROW": 4, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(wide, narrow, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDE, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [WIDE, NARROW]
