"""Squared distances of 20,001 points from 22,003 others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEFT = 20_001
RIGHT = 22_003
WIDTH = 256
SMALL = {"LEFT": 9, "RIGHT": 11, "WIDTH": 7}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        lengths = x.square().sum(dim=1)[:, None] + y.square().sum(dim=1)
        return (lengths - 2.0 * x @ y.T).clamp_min(0.0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(LEFT, WIDTH), torch.randn(RIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
