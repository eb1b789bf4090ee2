"""Separate convolutions in space and in time with batch norm on short clips."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
CHANNELS = 24
DEPTH = 12
HEIGHT = 64
WIDTH = 56
CLASSES = 13


class Model(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.space = nn.ModuleList(
            [
                nn.Conv3d(3, channels, (1, 5, 5), stride=(1, 2, 2), padding=(0, 2, 2)),
                nn.Conv3d(channels, 2 * channels, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)),
            ]
        )
        self.time = nn.ModuleList(
            nn.Conv3d(c, c, (3, 1, 1), padding=(1, 0, 0)) for c in (channels, 2 * channels)
        )
        self.norms = nn.ModuleList(nn.BatchNorm3d(c) for c in (channels, 2 * channels))
        self.head = nn.Linear(2 * channels, classes)
        for norm in self.norms:
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for space, time, norm in zip(self.space, self.time, self.norms, strict=True):
            x = F.relu(norm(time(F.relu(space(x)))))
        return self.head(x.mean(dim=(2, 3, 4)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, CLASSES]
