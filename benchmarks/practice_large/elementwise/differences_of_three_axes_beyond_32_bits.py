"""All differences of two small tensors over a shared last axis: 8.7 GB are written, little is read."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEFT = 1_301
RIGHT = 1_291
WIDTH = 1_290
SMALL = {"LEFT": 3, "RIGHT": 4, "WIDTH": 5}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x[:, None] - y).abs()


def get_inputs() -> list[Tensor]:
    return [torch.randn(LEFT, WIDTH), torch.randn(RIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
