"""Logits over 128,256 words, softly capped."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 2_048
FEATURES = 4_096
WORDS = 128_256
SMALL = {"TOKENS": 5, "FEATURES": 16, "WORDS": 40}


class Model(nn.Module):
    def __init__(self, features: int, words: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return 30.0 * torch.tanh(self.head(x) / 30.0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, WORDS]
