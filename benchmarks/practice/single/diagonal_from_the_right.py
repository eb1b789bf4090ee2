"""Product with a diagonal matrix that is written out in full: really a scaling of columns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 9_000
COLUMNS = 3_000


class Model(nn.Module):
    def forward(self, x: Tensor, scales: Tensor) -> Tensor:
        return x @ torch.diag(scales)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
