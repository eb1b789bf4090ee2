"""A linear layer from very many features on a small batch: the time of reading the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 48
FEATURES = 28_000
OUT_FEATURES = 2_500


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
