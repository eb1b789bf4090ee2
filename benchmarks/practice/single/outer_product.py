"""Outer product of two vectors: nothing but writes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 7_777
COLUMNS = 9_001


class Model(nn.Module):
    def forward(self, column: Tensor, row: Tensor) -> Tensor:
        return torch.outer(column, row)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS), torch.randn(COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
