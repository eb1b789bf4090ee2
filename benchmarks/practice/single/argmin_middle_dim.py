"""Position of the smallest value along the middle dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 80
FEATURES = 750
LENGTH = 1_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.argmin(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
