"""Sums of bags of 64 rows from a recommender's table of 2 GB."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ENTRIES = 4_000_037
FEATURES = 128
BAGS = 65_536
LENGTH = 64
SMALL = {"ENTRIES": 29, "FEATURES": 6, "BAGS": 9, "LENGTH": 5}


class Model(nn.Module):
    def __init__(self, entries: int, features: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(entries, features, mode="sum")

    def forward(self, bags: Tensor) -> Tensor:
        return self.table(bags)


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BAGS, LENGTH))]


def get_init_inputs() -> list[object]:
    return [ENTRIES, FEATURES]
