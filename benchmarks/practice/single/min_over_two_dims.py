"""Smallest value over the second and the last dimension, which are not neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 50
CHANNELS = 120
HEIGHT = 90
WIDTH = 110


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.amin(x, dim=(1, 3))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
