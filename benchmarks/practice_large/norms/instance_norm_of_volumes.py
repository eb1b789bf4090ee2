"""Instance norm of scans, each channel over a whole volume."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
CHANNELS = 32
SIDE = 160
SMALL = {"BATCH": 2, "CHANNELS": 3, "SIDE": 6}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(F.instance_norm(x), 0.01)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return []
