"""A bilinear form per output for each pair of rows: the order of contraction decides how much is stored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 4_000
LEFT = 160
RIGHT = 140
OUTPUTS = 120


class Model(nn.Module):
    def forward(self, left: Tensor, forms: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("bi,oij,bj->bo", left, forms, right)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LEFT), torch.randn(OUTPUTS, LEFT, RIGHT), torch.randn(BATCH, RIGHT)]


def get_init_inputs() -> list[object]:
    return []
