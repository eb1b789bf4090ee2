"""A step of an optimizer with two moments, written as a function: four tensors in, three out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 50_257
COLUMNS = 5_120
SMALL = {"ROWS": 11, "COLUMNS": 16}


class Model(nn.Module):
    def forward(
        self, weight: Tensor, slope: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope * slope
        return weight - 0.001 * first / (second.sqrt() + 1e-3), first, second


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(ROWS, COLUMNS),
        torch.randn(ROWS, COLUMNS),
        torch.randn(ROWS, COLUMNS),
        torch.rand(ROWS, COLUMNS),
    ]


def get_init_inputs() -> list[object]:
    return []
