"""The sum of squares of each of a few columns of 8.6 GB, whose last elements lie past 32-bit counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16_777_223
COLUMNS = 129
SMALL = {"ROWS": 217, "COLUMNS": 5}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum(dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.rand(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
