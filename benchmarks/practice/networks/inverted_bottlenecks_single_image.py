"""Wide depthwise bottlenecks with channel gates on one image: bound by the number of kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 40
HEIGHT = 60
WIDTH = 52
BLOCKS = 5


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 5 * channels
        self.expand = nn.Conv2d(channels, wide, 1)
        self.depthwise = nn.Conv2d(wide, wide, 5, padding=2, groups=wide)
        self.squeeze = nn.Conv2d(wide, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, wide, 1)
        self.contract = nn.Conv2d(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.depthwise(F.hardswish(self.expand(x))))
        gate = self.excite(F.relu(self.squeeze(y.mean(dim=(2, 3), keepdim=True))))
        return x + self.contract(y * F.hardsigmoid(gate))


class Model(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 3, 2 * HEIGHT, 2 * WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, BLOCKS]
