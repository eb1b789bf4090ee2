"""Second differences in three directions of volumes that wrap around."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 5
DEPTH = 384
HEIGHT = 400
WIDTH = 416
SMALL = {"BATCH": 2, "DEPTH": 5, "HEIGHT": 6, "WIDTH": 7}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        around = sum(torch.roll(x, step, dim) for step in (-1, 1) for dim in (1, 2, 3))
        return around - 6.0 * x


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
