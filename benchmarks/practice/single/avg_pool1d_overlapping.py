"""Moving average of 11 values at every second position."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
CHANNELS = 50
LENGTH = 36_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x, 11, stride=2, padding=5)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
