"""A linear layer without bias on a batch of token sequences of odd length."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
TOKENS = 777
FEATURES = 648
OUT_FEATURES = 1_540


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
