"""Instance norm of 72 volumes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 3
CHANNELS = 24
DEPTH = 60
HEIGHT = 120
WIDTH = 110


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
