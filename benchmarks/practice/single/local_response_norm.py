"""Divides by a power of the mean square over seven neighbouring channels: a window across planes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 96
HEIGHT = 180
WIDTH = 190


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, 7, alpha=0.3, beta=0.6)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
