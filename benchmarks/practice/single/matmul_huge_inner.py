"""A small result of very long dot products: the inner dimension must be split."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 224
COLUMNS = 180
INNER = 150_000


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right.T


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER)]


def get_init_inputs() -> list[object]:
    return []
