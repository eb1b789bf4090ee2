"""A recommender's crossing of features: all dot products of 27 vectors of each of 131,072 rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 131_072
VECTORS = 27
WIDTH = 128
SMALL = {"ROWS": 7, "WIDTH": 8}


class Model(nn.Module):
    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        every = torch.cat([dense[:, None], sparse], dim=1)
        products = every @ every.transpose(1, 2)
        return torch.cat([dense, torch.tril(products, -1).flatten(1)], dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS, VECTORS - 1, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
