"""Rows brought to length one, with the lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 1_000_003
COLUMNS = 1_024
SMALL = {"ROWS": 7, "COLUMNS": 19}


class Model(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / length.clamp_min(1e-6), length


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
