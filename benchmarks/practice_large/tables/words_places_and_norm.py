"""Words and places looked up, added and normalised."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 256
TOKENS = 1_024
WORDS = 50_257
FEATURES = 1_024
SMALL = {"BATCH": 2, "TOKENS": 7, "WORDS": 41, "FEATURES": 8}


class Model(nn.Module):
    def __init__(self, words: int, tokens: int, features: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, features)
        self.places = nn.Parameter(torch.randn(tokens, features))
        self.norm = nn.LayerNorm(features)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.words(tokens) + self.places)


def get_inputs() -> list[Tensor]:
    return [torch.randint(WORDS, (BATCH, TOKENS))]


def get_init_inputs() -> list[object]:
    return [WORDS, TOKENS, FEATURES]
