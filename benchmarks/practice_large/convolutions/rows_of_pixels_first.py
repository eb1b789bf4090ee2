"""A 3 x 3 convolution whose images come and go with channels last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 128
CHANNELS = 128
SIDE = 96
SMALL = {"BATCH": 2, "CHANNELS": 4, "SIDE": 7}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SIDE, SIDE, CHANNELS)]


def get_init_inputs() -> list[object]:
    return [CHANNELS]
