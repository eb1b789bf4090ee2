"""Attention with an additive bias per head that all of the batch share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
HEADS = 9
TOKENS = 720
HEAD_DIM = 48


class Model(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)


def get_inputs() -> list[Tensor]:
    shape = (BATCH, HEADS, TOKENS, HEAD_DIM)
    inputs = [torch.randn(shape) for _ in range(3)]
    return [*inputs, torch.randn(1, HEADS, TOKENS, TOKENS)]


def get_init_inputs() -> list[object]:
    return []
