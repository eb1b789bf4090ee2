"""Rectified layers with batch norm on a small batch of table rows: a handful of tiny kernels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 24
FEATURES = 210
MIDDLE = 640
LAYERS = 5
OUTPUTS = 3


class Model(nn.Module):
    def __init__(self, features: int, middle: int, layers: int, outputs: int) -> None:
        super().__init__()
        widths = [features] + [middle] * layers
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(middle) for _ in range(layers))
        self.head = nn.Linear(middle, outputs)
        for norm in self.norms:
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = F.relu(norm(linear(x)))
        return self.head(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE, LAYERS, OUTPUTS]
