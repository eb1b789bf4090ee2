"""Maximum over windows of 25 that advance by five: each value is compared five times."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 24
CHANNELS = 64
LENGTH = 40_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(x, 25, stride=5, padding=12)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
