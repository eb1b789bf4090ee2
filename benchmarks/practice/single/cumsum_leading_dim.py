"""Running sums down the columns of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 6_000
COLUMNS = 10_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
