"""Sixty thousand products of tiny matrices of odd sizes: one tile each is mostly padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 60_000
ROWS = 17
INNER = 23
COLUMNS = 19


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left, right)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, ROWS, INNER), torch.randn(BATCH, INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
