"""A product with a short inner side and a shift, whose result has more elements than 32 bits count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 46_411
INNER = 32
COLUMNS = 46_399
SMALL = {"ROWS": 9, "INNER": 4, "COLUMNS": 11}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor, shift: Tensor) -> Tensor:
        return torch.addmm(shift, x, y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
