"""Fifth power of each matrix of a batch: three products by squaring."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
SIZE = 700


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_power(x, 5)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SIZE, SIZE) / SIZE**0.5]


def get_init_inputs() -> list[object]:
    return []
