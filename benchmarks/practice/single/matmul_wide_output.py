"""A few rows times a very wide matrix: blocks have to be spread over the columns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 150
INNER = 320
COLUMNS = 200_000


class Model(nn.Module):
    def forward(self, few: Tensor, wide: Tensor) -> Tensor:
        return torch.matmul(few, wide)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
