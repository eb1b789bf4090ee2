"""How many values of each row lie above a threshold of the row's own: an integer sum of comparisons."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 3_000
COLUMNS = 20_000


class Model(nn.Module):
    def forward(self, x: Tensor, thresholds: Tensor) -> Tensor:
        return (x > thresholds[:, None]).sum(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS)]


def get_init_inputs() -> list[object]:
    return []
