"""Three stages of residual 3x3 convolutions with batch norm, which folds away, on small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 10
CHANNELS = 36
HEIGHT = 88
WIDTH = 72
CLASSES = 17


class Block(nn.Module):
    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out_channels) for _ in range(2))
        self.short = nn.Conv2d(channels, out_channels, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.short(x))


class Model(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 5, stride=2, padding=2)
        self.stages = nn.Sequential(
            Block(channels, channels, 1),
            Block(channels, 2 * channels, 2),
            Block(2 * channels, 4 * channels, 2),
        )
        self.head = nn.Linear(4 * channels, classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(F.relu(self.stem(x))).mean(dim=(2, 3)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, CLASSES]
