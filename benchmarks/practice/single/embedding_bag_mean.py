"""Means of bags of 24 rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ENTRIES = 200_000
FEATURES = 96
BATCH = 30_000
BAG = 24


class Model(nn.Module):
    def __init__(self, entries: int, features: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(entries, features))

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding_bag(indices, self.table, mode="mean")


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BATCH, BAG))]


def get_init_inputs() -> list[object]:
    return [ENTRIES, FEATURES]
