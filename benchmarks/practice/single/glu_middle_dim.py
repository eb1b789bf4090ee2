"""One half of the channels, gated by the sigmoid of the other half."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 40
CHANNELS = 98
LENGTH = 9_001


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 2 * CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
