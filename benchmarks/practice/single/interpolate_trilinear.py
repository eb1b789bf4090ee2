"""Trilinear enlargement of volumes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 2
CHANNELS = 24
DEPTH = 24
HEIGHT = 60
WIDTH = 52


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=(2, 3, 3), mode="trilinear", align_corners=False)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
