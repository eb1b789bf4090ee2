"""Bilinear samples of images at given places, some of them outside."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 48
HEIGHT = 260
WIDTH = 280
GRID_HEIGHT = 300
GRID_WIDTH = 310


class Model(nn.Module):
    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return F.grid_sample(x, places, padding_mode="border", align_corners=False)


def get_inputs() -> list[Tensor]:
    places = 2.2 * torch.rand(BATCH, GRID_HEIGHT, GRID_WIDTH, 2) - 1.1
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), places]


def get_init_inputs() -> list[object]:
    return []
