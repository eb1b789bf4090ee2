"""Blocks of 7x7 depthwise convolution, layer norm, two linear layers and a learned scale, then a reduction."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
CHANNELS = 120
HEIGHT = 40
WIDTH = 44
BLOCKS = 3


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.contract = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.randn(channels) / 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.contract(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class Model(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.reduce = nn.Conv2d(channels, 2 * channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.reduce(self.blocks(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, BLOCKS]
