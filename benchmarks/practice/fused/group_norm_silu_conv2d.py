"""Group norm, SiLU, a bias per image, convolution and residual: a step of a denoising network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
CHANNELS = 128
HEIGHT = 88
WIDTH = 80


class Model(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        y = F.silu(self.norm(x)) + step[:, :, None, None]
        return x + self.conv(y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), torch.randn(BATCH, CHANNELS)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, 16]
