"""Position of the largest value in each of 300 long rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 300
COLUMNS = 200_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.argmax(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
