"""One of two tensors by a comparison with a third that has one value for each image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 96
CHANNELS = 64
SIDE = 255
SMALL = {"BATCH": 3, "CHANNELS": 4, "SIDE": 7}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor, limit: Tensor) -> Tensor:
        return torch.where(x > limit[:, None, None, None], 0.5 * x, y)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, CHANNELS, SIDE, SIDE),
        torch.randn(BATCH, CHANNELS, SIDE, SIDE),
        torch.randn(BATCH),
    ]


def get_init_inputs() -> list[object]:
    return []
