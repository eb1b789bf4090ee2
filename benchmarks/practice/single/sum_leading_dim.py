"""Column sums of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 5_000
COLUMNS = 12_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
