"""Two million products of 7 by 9 by 5, the left ones transposed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 2_000_003
SMALL = {"BATCH": 11}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.transpose(1, 2) @ y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 9, 7), torch.randn(BATCH, 9, 5)]


def get_init_inputs() -> list[object]:
    return []
