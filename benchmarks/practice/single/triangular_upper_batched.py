"""A batch of upper triangles, each times its own block of vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 64
SIZE = 384
COLUMNS = 200


class Model(nn.Module):
    def forward(self, square: Tensor, vectors: Tensor) -> Tensor:
        return torch.bmm(torch.triu(square), vectors)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SIZE, SIZE), torch.randn(BATCH, SIZE, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
