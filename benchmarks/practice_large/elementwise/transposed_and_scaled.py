"""A batch of matrices transposed into rows that follow each other, with a gain for each column."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 24
ROWS = 4_999
COLUMNS = 5_003
SMALL = {"BATCH": 2, "ROWS": 9, "COLUMNS": 7}


class Model(nn.Module):
    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        return (x * gain).transpose(1, 2).contiguous()


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, ROWS, COLUMNS), torch.rand(COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
