"""Products of neighbouring columns: two strided reads of the same rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 131_072
PAIRS = 5_000
SMALL = {"ROWS": 6, "PAIRS": 17}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::2] * x[:, 1::2]


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, 2 * PAIRS)]


def get_init_inputs() -> list[object]:
    return []
