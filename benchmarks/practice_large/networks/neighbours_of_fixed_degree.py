"""Messages along six edges of each of a million nodes: gathered, averaged, mixed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NODES = 1_000_003
DEGREE = 6
FEATURES = 128
SMALL = {"NODES": 23, "DEGREE": 4, "FEATURES": 8}


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.own = nn.Linear(features, features)
        self.other = nn.Linear(features, features, bias=False)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return F.relu(self.own(x) + self.other(x[neighbours].mean(dim=1)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(NODES, FEATURES), torch.randint(NODES, (NODES, DEGREE))]


def get_init_inputs() -> list[object]:
    return [FEATURES]
