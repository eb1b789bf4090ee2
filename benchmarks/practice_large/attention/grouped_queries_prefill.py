"""Prefill of 8,192 tokens: 32 heads of queries over eight of keys, joined for the next product."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 2
QUERIES = 32
KEYS = 8
TOKENS = 8_192
WIDTH = 128
SMALL = {"BATCH": 1, "QUERIES": 4, "KEYS": 2, "TOKENS": 15, "WIDTH": 8}


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Written out: in float32 torch has no fused kernel for heads that share keys, and its own way holds all scores.
        k, v = (heads.repeat_interleave(QUERIES // KEYS, 1) for heads in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(1, 2).flatten(2)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, QUERIES, TOKENS, WIDTH),
        torch.randn(BATCH, KEYS, TOKENS, WIDTH),
        torch.randn(BATCH, KEYS, TOKENS, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
