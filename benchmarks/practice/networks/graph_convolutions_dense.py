"""Three rounds of graph convolution by a dense normalised adjacency matrix, then a mean over nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
NODES = 400
FEATURES = 80
MIDDLE = 160
CLASSES = 8


class Model(nn.Module):
    def __init__(self, features: int, middle: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(features, middle), nn.Linear(middle, middle), nn.Linear(middle, classes)]
        )

    def forward(self, x: Tensor, affinity: Tensor) -> Tensor:
        adjacency = torch.softmax(affinity + affinity.transpose(1, 2), dim=2)
        for layer in self.layers[:-1]:
            x = F.relu(layer(adjacency @ x))
        return self.layers[-1](adjacency @ x).mean(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, NODES, FEATURES), torch.randn(BATCH, NODES, NODES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE, CLASSES]
