"""A lower factor with a unit diagonal times its transpose: symmetric, and a third of the full work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 2_900


class Model(nn.Module):
    def forward(self, factor: Tensor) -> Tensor:
        lower = torch.tril(factor, -1) + torch.eye(
            factor.shape[0], device=factor.device, dtype=factor.dtype
        )
        return lower @ lower.T


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIZE, SIZE) / SIZE**0.5]


def get_init_inputs() -> list[object]:
    return []
