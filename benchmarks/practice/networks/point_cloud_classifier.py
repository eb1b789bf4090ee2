"""The same small network for every point, a maximum over all points, and a head: the wide layer need not be kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
POINTS = 2_048
WIDE = 768
CLASSES = 21


class Model(nn.Module):
    def __init__(self, wide: int, classes: int) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 64, 1),
            nn.ReLU(),
            nn.Conv1d(64, 128, 1),
            nn.ReLU(),
            nn.Conv1d(128, wide, 1),
        )
        self.head = nn.Sequential(nn.Linear(wide, 200), nn.ReLU(), nn.Linear(200, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.points(x.transpose(1, 2)).amax(dim=2)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, POINTS, 3)]


def get_init_inputs() -> list[object]:
    return [WIDE, CLASSES]
