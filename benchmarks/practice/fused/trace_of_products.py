"""Traces of matrix products in a batch: only diagonals of the products are needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 10
ROWS = 1_200
INNER = 1_500


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        products = left @ right
        return products.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, ROWS, INNER), torch.randn(BATCH, INNER, ROWS)]


def get_init_inputs() -> list[object]:
    return []
