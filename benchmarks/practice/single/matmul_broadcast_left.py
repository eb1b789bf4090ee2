"""One small matrix applied from the left to every matrix of a batch: it never leaves the cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 700
ROWS = 60
INNER = 150
COLUMNS = 500


class Model(nn.Module):
    def forward(self, shared: Tensor, batch: Tensor) -> Tensor:
        return torch.matmul(shared, batch)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(BATCH, INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
