"""Divides every matrix of a batch by its Frobenius norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 500
ROWS = 350
COLUMNS = 340


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.linalg.matrix_norm(x, keepdim=True)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
