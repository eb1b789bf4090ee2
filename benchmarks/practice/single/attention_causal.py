"""Causal attention in float32: half of the scores are never needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 3
HEADS = 12
TOKENS = 1_536
HEAD_DIM = 64


class Model(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def get_inputs() -> list[Tensor]:
    shape = (BATCH, HEADS, TOKENS, HEAD_DIM)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs() -> list[object]:
    return []
