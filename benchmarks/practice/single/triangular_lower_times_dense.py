"""Lower triangle of a square matrix times a rectangular one: half the multiplications are by zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 3_600
COLUMNS = 2_000


class Model(nn.Module):
    def forward(self, square: Tensor, dense: Tensor) -> Tensor:
        return torch.tril(square) @ dense


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIZE, SIZE), torch.randn(SIZE, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
