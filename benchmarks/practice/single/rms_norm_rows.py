"""RMS norm with a learned scale over rows of 3,000."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 20_000
COLUMNS = 3_000


class Model(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(columns, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return [COLUMNS]
