"""A small network as a velocity, followed through six steps of a fourth-order method: 24 evaluations in a row."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
FEATURES = 60
MIDDLE = 220
STEPS = 6


class Velocity(nn.Module):
    def __init__(self, features: int, middle: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, middle)
        self.second = nn.Linear(middle, middle)
        self.third = nn.Linear(middle, features)
        self.clock = nn.Parameter(torch.randn(middle))

    def forward(self, x: Tensor, time: float) -> Tensor:
        y = F.silu(self.first(x) + time * self.clock)
        return self.third(F.silu(self.second(y)))


class Model(nn.Module):
    def __init__(self, features: int, middle: int, steps: int) -> None:
        super().__init__()
        self.velocity = Velocity(features, middle)
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        size = 1 / self.steps
        for i in range(self.steps):
            k1 = self.velocity(x, i * size)
            k2 = self.velocity(x + size / 2 * k1, (i + 0.5) * size)
            k3 = self.velocity(x + size / 2 * k2, (i + 0.5) * size)
            k4 = self.velocity(x + size * k3, (i + 1) * size)
            x = x + size / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE, STEPS]
