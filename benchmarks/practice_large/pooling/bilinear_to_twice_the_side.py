"""Images enlarged bilinearly, a skip added."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
CHANNELS = 64
SIDE = 256
SMALL = {"BATCH": 2, "CHANNELS": 3, "SIDE": 7}


class Model(nn.Module):
    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return skip + F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, CHANNELS, SIDE, SIDE),
        torch.randn(BATCH, CHANNELS, 2 * SIDE, 2 * SIDE),
    ]


def get_init_inputs() -> list[object]:
    return []
