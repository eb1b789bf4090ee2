"""Dilated causal convolution to two halves, tanh of one times sigmoid of the other, 1x1 convolution, residual."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 12
CHANNELS = 90
LENGTH = 8_000


class Model(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.reach = 2 * dilation
        self.dilated = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.dilated(F.pad(x, (self.reach, 0))).chunk(2, dim=1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, 16]
