"""Bits of two tensors of bytes, mixed; there are more elements than 32 bits count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTH = 2_200_000_013
SMALL = {"LENGTH": 1_021}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x & y) ^ (x >> 3)


def get_inputs() -> list[Tensor]:
    return [
        torch.randint(-128, 128, (LENGTH,), dtype=torch.int8),
        torch.randint(-128, 128, (LENGTH,), dtype=torch.int8),
    ]


def get_init_inputs() -> list[object]:
    return []
