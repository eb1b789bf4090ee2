"""Mean squared difference of the Gram matrices of two sets of features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 10
CHANNELS = 200
HEIGHT = 110
WIDTH = 100


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        first, second = left.flatten(2), right.flatten(2)
        gap = torch.bmm(first, first.transpose(1, 2)) - torch.bmm(second, second.transpose(1, 2))
        return (gap / first.shape[2]).square().mean(dim=(1, 2))


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH),
        torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
