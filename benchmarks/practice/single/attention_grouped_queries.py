"""Attention in which six query heads share one head of keys and values, which eager mode copies."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
HEADS = 24
KEY_HEADS = 4
TOKENS = 800
HEAD_DIM = 64


class Model(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, TOKENS, HEAD_DIM),
        torch.randn(BATCH, KEY_HEADS, TOKENS, HEAD_DIM),
        torch.randn(BATCH, KEY_HEADS, TOKENS, HEAD_DIM),
    ]


def get_init_inputs() -> list[object]:
    return []
