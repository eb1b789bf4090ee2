"""One number from sixty million: blocks have to meet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTH = 60_000_003


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


def get_inputs() -> list[Tensor]:
    return [torch.randn(LENGTH)]


def get_init_inputs() -> list[object]:
    return []
