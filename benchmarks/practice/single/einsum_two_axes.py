"""Contraction over two axes in the middle of one tensor: needs a transposition or a clever loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FIRST = 64
SECOND = 48
THIRD = 56
FOURTH = 90
OUTPUTS = 300


class Model(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum("abcd,bce->ade", x, weight)


def get_inputs() -> list[Tensor]:
    return [torch.randn(FIRST, SECOND, THIRD, FOURTH), torch.randn(SECOND, THIRD, OUTPUTS)]


def get_init_inputs() -> list[object]:
    return []
