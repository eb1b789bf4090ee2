"""Fourier features of coordinates and four sine layers to a colour: narrow products on very many rows."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

POINTS = 120_000
FREQUENCIES = 24
WIDTH = 96
LAYERS = 4


class Model(nn.Module):
    def __init__(self, frequencies: int, width: int, layers: int) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(4 * torch.randn(3, frequencies))
        widths = [2 * frequencies] + [width] * layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        phases = x @ self.frequencies
        x = torch.cat([torch.sin(phases), torch.cos(phases)], dim=1)
        for layer in self.layers:
            x = torch.sin(3 * layer(x))
        return torch.sigmoid(self.head(x))


def get_inputs() -> list[Tensor]:
    return [2 * torch.rand(POINTS, 3) - 1]


def get_init_inputs() -> list[object]:
    return [FREQUENCIES, WIDTH, LAYERS]
