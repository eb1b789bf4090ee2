"""Modules of four branches over the same input, joined along channels: small kernels that could run side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
CHANNELS = 144
HEIGHT = 35
WIDTH = 31


class Branches(nn.Module):
    def __init__(self, channels: int, share: int) -> None:
        super().__init__()
        self.point = nn.Conv2d(channels, share, 1)
        self.square = nn.Sequential(
            nn.Conv2d(channels, share // 2, 1),
            nn.ReLU(),
            nn.Conv2d(share // 2, share, 3, padding=1),
        )
        self.cross = nn.Sequential(
            nn.Conv2d(channels, share // 2, 1),
            nn.ReLU(),
            nn.Conv2d(share // 2, share, (1, 7), padding=(0, 3)),
            nn.ReLU(),
            nn.Conv2d(share, share, (7, 1), padding=(3, 0)),
        )
        self.pooled = nn.Conv2d(channels, share, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(x, 3, stride=1, padding=1)
        parts = [self.point(x), self.square(x), self.cross(x), self.pooled(pooled)]
        return F.relu(torch.cat(parts, dim=1))


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Branches(channels, 48)
        self.second = Branches(192, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).amax(dim=(2, 3))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
