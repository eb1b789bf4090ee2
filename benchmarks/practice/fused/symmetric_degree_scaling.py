"""Scales an adjacency matrix by degrees on both sides through two written-out diagonal matrices, then applies it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 2_600
FEATURES = 300


class Model(nn.Module):
    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        inverse_root = torch.diag(adjacency.sum(dim=1).rsqrt())
        return torch.relu(inverse_root @ adjacency @ inverse_root @ x)


def get_inputs() -> list[Tensor]:
    return [torch.rand(SIZE, SIZE), torch.randn(SIZE, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
