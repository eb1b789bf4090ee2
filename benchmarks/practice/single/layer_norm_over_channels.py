"""Layer norm over the channels of images that are stored channels first: rows are strided."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 12
CHANNELS = 320
HEIGHT = 120
WIDTH = 130


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        normed = F.layer_norm(last, last.shape[-1:], self.weight, self.bias)
        return normed.permute(0, 3, 1, 2).contiguous()


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
