"""Inner products of all pairs of columns: the result is symmetric, so half of it would do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 30_000
COLUMNS = 1_100


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.T @ x


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
