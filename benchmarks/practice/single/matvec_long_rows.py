"""Matrix times vector with fewer rows than a device has warps: each row needs several of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 900
COLUMNS = 70_000


class Model(nn.Module):
    def forward(self, matrix: Tensor, vector: Tensor) -> Tensor:
        return torch.mv(matrix, vector)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
