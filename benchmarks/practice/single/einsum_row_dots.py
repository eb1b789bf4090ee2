"""One dot product per token and head of two tensors: a product with no reuse at all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 12
TOKENS = 3_300
HEADS = 15
HEAD_DIM = 64


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("bthd,bthd->bht", left, right)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, TOKENS, HEADS, HEAD_DIM),
        torch.randn(BATCH, TOKENS, HEADS, HEAD_DIM),
    ]


def get_init_inputs() -> list[object]:
    return []
