"""Means over the first and the last axis, the middle one kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

OUTER = 1_024
MIDDLE = 768
INNER = 1_023
SMALL = {"OUTER": 5, "MIDDLE": 6, "INNER": 7}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(0, 2))


def get_inputs() -> list[Tensor]:
    return [torch.randn(OUTER, MIDDLE, INNER)]


def get_init_inputs() -> list[object]:
    return []
