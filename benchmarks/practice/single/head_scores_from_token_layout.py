"""Scores of queries and keys that lie token by token, heads inside: batched products on strided operands."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 6
TOKENS = 700
HEADS = 10
HEAD_DIM = 72


class Model(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.matmul(queries.permute(0, 2, 1, 3), keys.permute(0, 2, 3, 1))


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, TOKENS, HEADS, HEAD_DIM),
        torch.randn(BATCH, TOKENS, HEADS, HEAD_DIM),
    ]


def get_init_inputs() -> list[object]:
    return []
