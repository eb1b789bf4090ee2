"""A linear layer on every token, then the mean over tokens and a layer norm: the mean may come first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 32
TOKENS = 900
FEATURES = 700
OUT_FEATURES = 1_100


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, out_features)
        self.norm = nn.LayerNorm(out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x).mean(dim=1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
