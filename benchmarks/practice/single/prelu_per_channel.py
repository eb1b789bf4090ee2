"""Leaky rectifier with a learned slope for each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 30
CHANNELS = 90
HEIGHT = 140
WIDTH = 150


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.slopes)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
