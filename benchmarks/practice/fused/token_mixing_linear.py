"""A linear layer along the tokens between two transpositions, GELU and a residual."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
TOKENS = 380
FEATURES = 640


class Model(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(x.transpose(1, 2))).transpose(1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [TOKENS]
