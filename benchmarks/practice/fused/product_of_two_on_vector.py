"""Two matrices are multiplied before a few vectors are: the other order needs a thousandth of the work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 3_100
INNER = 2_700
VECTORS = 3


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor, vectors: Tensor) -> Tensor:
        return torch.tanh((left @ right) @ vectors)


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIZE, INNER), torch.randn(INNER, SIZE), torch.randn(SIZE, VECTORS) / SIZE]


def get_init_inputs() -> list[object]:
    return []
