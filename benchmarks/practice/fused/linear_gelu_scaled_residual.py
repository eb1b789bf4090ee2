"""Linear layer, GELU, a learned scale per feature and the input added back."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 6_000
FEATURES = 1_400


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.scale = nn.Parameter(torch.randn(features))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * F.gelu(self.linear(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES]
