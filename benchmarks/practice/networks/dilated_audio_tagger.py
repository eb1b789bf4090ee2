"""Causal convolutions with growing dilation and residuals on feature frames, pooled over time into tags."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 10
CHANNELS = 72
FRAMES = 1_000
TAGS = 30
LAYERS = 6


class Model(nn.Module):
    def __init__(self, channels: int, tags: int, layers: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, 3, dilation=2**i) for i in range(layers)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
        self.head = nn.Linear(2 * channels, tags)

    def forward(self, x: Tensor) -> Tensor:
        for i, (conv, mix) in enumerate(zip(self.convs, self.mixes, strict=True)):
            x = x + mix(F.relu(conv(F.pad(x, (2 ** (i + 1), 0)))))
        return torch.sigmoid(self.head(torch.cat([x.mean(dim=2), x.amax(dim=2)], dim=1)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, FRAMES)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, TAGS, LAYERS]
