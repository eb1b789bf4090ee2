"""Batched products whose left operands are stored transposed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 36
ROWS = 430
INNER = 610
COLUMNS = 390


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left.transpose(1, 2), right)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, INNER, ROWS), torch.randn(BATCH, INNER, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
