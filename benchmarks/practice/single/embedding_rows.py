"""Look-up of rows of 160 in a large table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ENTRIES = 400_000
FEATURES = 160
BATCH = 64
TOKENS = 6_000


class Model(nn.Module):
    def __init__(self, entries: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(entries, features)

    def forward(self, indices: Tensor) -> Tensor:
        return self.table(indices)


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BATCH, TOKENS))]


def get_init_inputs() -> list[object]:
    return [ENTRIES, FEATURES]
