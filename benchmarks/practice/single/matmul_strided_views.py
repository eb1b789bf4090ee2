"""Product of views that skip columns of one matrix and rows of the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2_500
INNER = 2_300
COLUMNS = 1_800


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left[:, ::2] @ right[::3]


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, 2 * INNER), torch.randn(3 * INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
