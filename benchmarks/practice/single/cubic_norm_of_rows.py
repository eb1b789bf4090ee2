"""Norm of order three of each row, the cube root of a sum of cubes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2_400
COLUMNS = 25_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, ord=3, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
