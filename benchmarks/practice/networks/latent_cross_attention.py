"""A few learned latents attend to a long input, then to themselves, then give classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
POINTS = 5_000
FEATURES = 96
LATENTS = 64
WIDTH = 256
HEADS = 8
CLASSES = 12


class Attention(nn.Module):
    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.pair = nn.Linear(source, 2 * width)
        self.join = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        queries = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        pair = self.pair(source).unflatten(2, (2, self.heads, -1))
        keys, values = pair.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        return x + self.join(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, features: int, latents: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, latents, width))
        self.look = Attention(width, features, heads)
        self.think = nn.ModuleList(Attention(width, width, heads) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.look(self.latents.expand(x.shape[0], -1, -1), x)
        for norm, think in zip(self.norms, self.think, strict=True):
            y = norm(y)
            y = think(y, y)
        return self.head(y.mean(dim=1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, POINTS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, LATENTS, WIDTH, HEADS, CLASSES]
