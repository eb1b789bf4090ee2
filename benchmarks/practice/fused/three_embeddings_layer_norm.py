"""Sum of three look-ups, layer norm and a scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 48
TOKENS = 512
FEATURES = 768
ENTRIES = 60_000
KINDS = 7


class Model(nn.Module):
    def __init__(self, entries: int, tokens: int, kinds: int, features: int) -> None:
        super().__init__()
        self.words = nn.Embedding(entries, features)
        self.places = nn.Embedding(tokens, features)
        self.kinds = nn.Embedding(kinds, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, words: Tensor, kinds: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        total = self.words(words) + self.places(places) + self.kinds(kinds)
        return self.norm(total) * total.shape[-1] ** 0.5


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BATCH, TOKENS)), torch.randint(KINDS, (BATCH, TOKENS))]


def get_init_inputs() -> list[object]:
    return [ENTRIES, TOKENS, KINDS, FEATURES]
