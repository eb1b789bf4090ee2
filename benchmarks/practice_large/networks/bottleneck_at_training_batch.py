"""A residual bottleneck with fixed statistics on 256 images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
WIDE = 256
NARROW = 64
SIDE = 56
SMALL = {"BATCH": 2, "WIDE": 8, "NARROW": 4, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(wide, narrow, 1, bias=False)
        self.mix = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.expand = nn.Conv2d(narrow, wide, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (narrow, narrow, wide))
        self.norms.eval()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.reduce(x)))
        y = F.relu(self.norms[1](self.mix(y)))
        return F.relu(x + self.norms[2](self.expand(y)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDE, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [WIDE, NARROW]
