"""Product of two transposed matrices: equal to the transpose of the product the other way round."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2_300
INNER = 1_900
COLUMNS = 2_700


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left.T @ right.T


def get_inputs() -> list[Tensor]:
    return [torch.randn(INNER, ROWS), torch.randn(COLUMNS, INNER)]


def get_init_inputs() -> list[object]:
    return []
