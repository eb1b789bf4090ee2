"""Row vector times a tall matrix: sums run across the contiguous dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 40_000
COLUMNS = 1_500


class Model(nn.Module):
    def forward(self, vector: Tensor, matrix: Tensor) -> Tensor:
        return vector @ matrix


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS), torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
