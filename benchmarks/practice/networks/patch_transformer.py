"""Images cut into patches, a learned first token, four attention blocks with the norm first, and a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
FEATURES = 300
HEADS = 5
BLOCKS = 4
PATCH = 14
HEIGHT = 168
WIDTH = 196
CLASSES = 40


class Block(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(2))
        self.project = nn.Linear(features, 3 * features)
        self.join = nn.Linear(features, features)
        self.mlp = nn.Sequential(
            nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.norms[0](x)).unflatten(2, (3, self.heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        x = x + self.join(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(
        self, features: int, heads: int, blocks: int, patch: int, patches: int, classes: int
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, features, patch, stride=patch)
        self.first = nn.Parameter(torch.randn(1, 1, features))
        self.places = nn.Parameter(torch.randn(1, patches + 1, features))
        self.blocks = nn.Sequential(*(Block(features, heads) for _ in range(blocks)))
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), patches], dim=1)
        return self.head(self.blocks(tokens + self.places)[:, 0])


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HEADS, BLOCKS, PATCH, (HEIGHT // PATCH) * (WIDTH // PATCH), CLASSES]
