"""Moves 3x3 blocks of pixels into channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
CHANNELS = 22
HEIGHT = 390
WIDTH = 420


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, 3)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
