"""Logarithm of a sum of exponentials over the first dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTH = 700
ROWS = 300
COLUMNS = 290


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(x, dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(LENGTH, ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
