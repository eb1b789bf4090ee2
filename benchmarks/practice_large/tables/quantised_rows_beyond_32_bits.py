"""Rows of a table of bytes with more elements than 32 bits count, scaled and summed by fours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ENTRIES = 300_007
FEATURES = 7_200
ROWS = 30_000
SMALL = {"ENTRIES": 37, "FEATURES": 24, "ROWS": 9}


class Model(nn.Module):
    def forward(self, table: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
        return (table[rows].float() * scales[rows][..., None]).sum(dim=1)


def get_inputs() -> list[Tensor]:
    return [
        torch.randint(-128, 128, (ENTRIES, FEATURES), dtype=torch.int8),
        torch.rand(ENTRIES),
        torch.randint(ENTRIES, (ROWS, 4)),
    ]


def get_init_inputs() -> list[object]:
    return []
