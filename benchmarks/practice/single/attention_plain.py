"""Attention in float32 with a head dimension of 72 and an odd number of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
HEADS = 10
TOKENS = 1_101
HEAD_DIM = 72


class Model(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values)


def get_inputs() -> list[Tensor]:
    shape = (BATCH, HEADS, TOKENS, HEAD_DIM)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs() -> list[object]:
    return []
