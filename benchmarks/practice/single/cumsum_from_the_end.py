"""Sums of all that follows, along the middle dimension: two flips and a scan in eager mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 50
LENGTH = 3_000
FEATURES = 330


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.flip(torch.cumsum(torch.flip(x, (1,)), dim=1), (1,))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
