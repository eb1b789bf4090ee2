"""Kronecker product of two matrices: every element of the result is one multiplication and one write."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 90
COLUMNS = 70
INNER_ROWS = 110
INNER_COLUMNS = 100


class Model(nn.Module):
    def forward(self, outer: Tensor, inner: Tensor) -> Tensor:
        return torch.kron(outer, inner)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(INNER_ROWS, INNER_COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
