"""Scores every token with a vector, takes the softmax over tokens and sums them with it: one pass would do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 48
TOKENS = 1_500
FEATURES = 800


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(features) / features**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(x @ self.query, dim=1)
        return (weights[:, :, None] * x).sum(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES]
