"""A 1 x 1 convolution from 64 to 256 channels with its SiLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
NARROW = 64
WIDE = 256
SIDE = 56
SMALL = {"BATCH": 2, "NARROW": 4, "WIDE": 6, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(narrow, wide, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, NARROW, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [NARROW, WIDE]
