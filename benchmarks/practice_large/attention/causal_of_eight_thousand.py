"""Causal attention of 8,192 tokens, four sequences of sixteen heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
HEADS = 16
TOKENS = 8_192
WIDTH = 64
SMALL = {"BATCH": 2, "HEADS": 2, "TOKENS": 19, "WIDTH": 8}


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, TOKENS, WIDTH),
        torch.randn(BATCH, HEADS, TOKENS, WIDTH),
        torch.randn(BATCH, HEADS, TOKENS, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
