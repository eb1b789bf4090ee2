"""Two causal transformer blocks over learned places, from token numbers to logits of the last one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 5
TOKENS = 330
ENTRIES = 9_000
FEATURES = 448
HEADS = 7


class Block(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(2))
        self.project = nn.Linear(features, 3 * features)
        self.join = nn.Linear(features, features)
        self.expand = nn.Linear(features, 4 * features)
        self.contract = nn.Linear(4 * features, features)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.project(self.norms[0](x)).chunk(3, dim=2)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).flatten(2))
        return x + self.contract(F.gelu(self.expand(self.norms[1](x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, entries: int, tokens: int, features: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(entries, features)
        self.places = nn.Parameter(torch.randn(tokens, features))
        self.blocks = nn.Sequential(Block(features, heads), Block(features, heads))
        self.norm = nn.LayerNorm(features)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.words(tokens) + self.places)
        return self.norm(x)[:, -1] @ self.words.weight.T


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BATCH, TOKENS))]


def get_init_inputs() -> list[object]:
    return [ENTRIES, TOKENS, FEATURES, HEADS]
