"""Takes values from each row at positions of the row's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 6_000
COLUMNS = 8_000
TAKEN = 3_000


class Model(nn.Module):
    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return torch.gather(x, 1, positions)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randint(COLUMNS, (ROWS, TAKEN))]


def get_init_inputs() -> list[object]:
    return []
