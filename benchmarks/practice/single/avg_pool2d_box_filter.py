"""7x7 box filter in which padding does not count: borders divide by less, and the filter is separable."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 20
CHANNELS = 50
HEIGHT = 210
WIDTH = 230


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 7, stride=1, padding=3, count_include_pad=False)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
