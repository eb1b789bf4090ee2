"""A copy with all four axes in reverse order: nothing is contiguous on both sides."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FIRST = 55
SECOND = 96
THIRD = 70
FOURTH = 120


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(3, 2, 1, 0).contiguous()


def get_inputs() -> list[Tensor]:
    return [torch.randn(FIRST, SECOND, THIRD, FOURTH)]


def get_init_inputs() -> list[object]:
    return []
