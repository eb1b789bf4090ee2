"""Rows of an embedding of 2 GB for a million tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORDS = 1_000_003
FEATURES = 512
TOKENS = 1_048_576
SMALL = {"WORDS": 31, "FEATURES": 6, "TOKENS": 40}


class Model(nn.Module):
    def __init__(self, words: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, features)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def get_inputs() -> list[Tensor]:
    return [torch.randint(WORDS, (TOKENS,))]


def get_init_inputs() -> list[object]:
    return [WORDS, FEATURES]
