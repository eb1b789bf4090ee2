"""Two layers of attention over the nine neighbours of each node, gathered by number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NODES = 12_000
DEGREE = 9
FEATURES = 64
HEADS = 4


class Layer(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.value = nn.Linear(features, features)
        self.source = nn.Linear(features, heads)
        self.target = nn.Linear(features, heads)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        scores = self.source(x)[neighbours] + self.target(x)[:, None]
        weights = torch.softmax(F.leaky_relu(scores, 0.2), dim=1)
        values = self.value(x).unflatten(1, (self.heads, -1))[neighbours]
        return F.elu((weights[..., None] * values).sum(dim=1).flatten(1)) + x


class Model(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(features, heads) for _ in range(2))

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, neighbours)
        return x


def get_inputs() -> list[Tensor]:
    return [torch.randn(NODES, FEATURES), torch.randint(NODES, (NODES, DEGREE))]


def get_init_inputs() -> list[object]:
    return [FEATURES, HEADS]
