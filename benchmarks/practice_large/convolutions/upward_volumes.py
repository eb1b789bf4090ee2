"""A transposed convolution that doubles a scan's sides."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 2
WIDE = 64
NARROW = 32
SIDE = 80
SMALL = {"BATCH": 1, "WIDE": 4, "NARROW": 3, "SIDE": 5}


class Model(nn.Module):
    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(wide, narrow, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDE, SIDE, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [WIDE, NARROW]
