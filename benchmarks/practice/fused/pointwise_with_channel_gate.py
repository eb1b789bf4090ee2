"""1x1 convolution whose channels are then scaled by a small network of their own means."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 22
CHANNELS = 130
HEIGHT = 90
WIDTH = 84
SQUEEZED = 18


class Model(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.squeeze = nn.Linear(channels, squeezed)
        self.excite = nn.Linear(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        gate = self.excite(F.relu(self.squeeze(y.mean(dim=(2, 3)))))
        return y * torch.sigmoid(gate)[:, :, None, None]


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, SQUEEZED]
