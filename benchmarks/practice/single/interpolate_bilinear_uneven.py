"""Bilinear enlargement by a factor that is not whole, other in each direction."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 40
HEIGHT = 150
WIDTH = 170


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, size=(401, 363), mode="bilinear", align_corners=False)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
