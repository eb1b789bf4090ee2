"""Product of two square matrices of an odd size: no usual tile divides it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 2875


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.mm(left, right)


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)]


def get_init_inputs() -> list[object]:
    return []
