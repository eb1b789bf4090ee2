"""The thirty-two largest of each row of a large vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2_048
COLUMNS = 128_256
SMALL = {"ROWS": 4, "COLUMNS": 200}


class Model(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.topk(x, 32, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
