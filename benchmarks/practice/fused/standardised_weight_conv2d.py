"""Convolution whose filters are standardised in every call, with a scale and a bias per channel after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 12
CHANNELS = 76
OUT_CHANNELS = 100
HEIGHT = 90
WIDTH = 102


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_channels, channels, 3, 3))
        self.scale = nn.Parameter(torch.rand(out_channels, 1, 1))
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(variance * self.weight[0].numel() + 1e-5)
        return F.relu(F.conv2d(x, weight, padding=1) * self.scale + self.bias)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
