"""A linear layer on a single row: a matrix-vector product with a bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 12_000
OUT_FEATURES = 5_900


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, features) / features**0.5)
        self.bias = nn.Parameter(torch.randn(out_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
