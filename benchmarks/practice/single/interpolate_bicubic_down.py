"""Bicubic reduction to two thirds: sixteen values and eight weights per output."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
CHANNELS = 30
HEIGHT = 500
WIDTH = 620


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, size=(333, 413), mode="bicubic", align_corners=True)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
