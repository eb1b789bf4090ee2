"""Logarithm of the running sum of exponentials: a scan with a two-part state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2_000
COLUMNS = 24_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.logcumsumexp(x, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
