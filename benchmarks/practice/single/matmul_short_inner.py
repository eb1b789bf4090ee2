"""A large result of very short dot products: writing it is all the work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 9_000
COLUMNS = 7_000
INNER = 24


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.mm(left, right.T)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER)]


def get_init_inputs() -> list[object]:
    return []
