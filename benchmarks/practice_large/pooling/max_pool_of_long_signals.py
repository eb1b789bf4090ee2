"""Maxima of windows of seven over a minute of sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
CHANNELS = 8
LENGTH = 960_001
SMALL = {"BATCH": 2, "CHANNELS": 3, "LENGTH": 203}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(x, 7, stride=4)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
