"""Bottlenecks with a grouped 3x3 convolution between two pointwise ones, at one resolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
CHANNELS = 320
MIDDLE = 160
HEIGHT = 28
WIDTH = 36
BLOCKS = 4


class Bottleneck(nn.Module):
    def __init__(self, channels: int, middle: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(channels, middle, 1, bias=False),
                nn.Conv2d(middle, middle, 3, padding=1, groups=20, bias=False),
                nn.Conv2d(middle, channels, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c.out_channels) for c in self.convs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.convs[0](x)))
        y = F.relu(self.norms[1](self.convs[1](y)))
        return F.relu(x + self.norms[2](self.convs[2](y)))


class Model(nn.Module):
    def __init__(self, channels: int, middle: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Bottleneck(channels, middle) for _ in range(blocks)))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, MIDDLE, BLOCKS]
