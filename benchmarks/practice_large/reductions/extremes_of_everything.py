"""Least and largest of all of 4 GB, and their difference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PARTS = 1_000
LENGTH = 1_000_033
SMALL = {"PARTS": 3, "LENGTH": 101}


class Model(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        least, largest = torch.aminmax(x)
        return least, largest, largest - least


def get_inputs() -> list[Tensor]:
    return [torch.randn(PARTS, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
