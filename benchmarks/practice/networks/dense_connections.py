"""Convolutions that each see the outputs of all before: joined again and again, or written once in place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 44
GROWTH = 20
LAYERS = 6
HEIGHT = 56
WIDTH = 52


class Model(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels + growth * i) for i in range(layers))
        self.convs = nn.ModuleList(
            nn.Conv2d(channels + growth * i, growth, 3, padding=1, bias=False)
            for i in range(layers)
        )
        for norm in self.norms:
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], dim=1)
        return F.avg_pool2d(x, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, GROWTH, LAYERS]
