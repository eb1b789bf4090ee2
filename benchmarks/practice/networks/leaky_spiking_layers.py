"""Two layers of leaky units that fire at a threshold, over 40 steps: elementwise state between products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 48
STEPS = 40
FEATURES = 250
UNITS = 500
OUTPUTS = 11


class Model(nn.Module):
    def __init__(self, features: int, units: int, outputs: int, decay: float) -> None:
        super().__init__()
        self.first = nn.Linear(features, units)
        self.second = nn.Linear(units, outputs)
        self.decay = decay

    def forward(self, x: Tensor) -> Tensor:
        charge = x.new_zeros(x.shape[1], self.first.out_features)
        total = x.new_zeros(x.shape[1], self.second.out_features)
        for step in x.unbind(dim=0):
            charge = self.decay * charge + self.first(step)
            firing = torch.sigmoid(8 * (charge - 1))
            charge = charge * (1 - firing)
            total = self.decay * total + self.second(firing)
        return total


def get_inputs() -> list[Tensor]:
    return [torch.randn(STEPS, BATCH, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, UNITS, OUTPUTS, 0.9]
