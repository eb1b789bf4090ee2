"""Look-ups for categories and a small network for numbers, dot products of all pairs, and a network on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 64
ENTRIES = 50_000
FIELDS = 22
NUMBERS = 15
FEATURES = 48


class Model(nn.Module):
    def __init__(self, entries: int, fields: int, numbers: int, features: int) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(fields, entries, features) / features**0.5)
        self.bottom = nn.Sequential(
            nn.Linear(numbers, 256), nn.ReLU(), nn.Linear(256, features), nn.ReLU()
        )
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + features, 300),
            nn.ReLU(),
            nn.Linear(300, 120),
            nn.ReLU(),
            nn.Linear(120, 1),
        )
        self.register_buffer("pairs", torch.tril_indices(fields + 1, fields + 1, -1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        fields = torch.arange(categories.shape[1], device=categories.device)
        dense = self.bottom(numbers)
        vectors = torch.cat([dense[:, None], self.tables[fields, categories]], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([dots, dense], dim=1)))


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BATCH, FIELDS)), torch.randn(BATCH, NUMBERS)]


def get_init_inputs() -> list[object]:
    return [ENTRIES, FIELDS, NUMBERS, FEATURES]
