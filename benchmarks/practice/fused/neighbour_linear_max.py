"""Gathers sixteen neighbours of each point, applies a linear layer to each and takes the maximum: it may come first."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
POINTS = 4_000
NEIGHBOURS = 16
FEATURES = 64
OUT_FEATURES = 128


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, out_features)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        return F.relu(self.linear(x[batch, neighbours]).amax(dim=2))


def get_inputs() -> list[Tensor]:
    neighbours = torch.randint(POINTS, (BATCH, POINTS, NEIGHBOURS))
    return [torch.randn(BATCH, POINTS, FEATURES), neighbours]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
