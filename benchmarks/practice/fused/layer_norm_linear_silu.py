"""Layer norm, linear layer, SiLU: the norm can go into the product's prologue."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 9_000
FEATURES = 1_024
OUT_FEATURES = 1_500


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.linear = nn.Linear(features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.linear(self.norm(x)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
