"""One new token of each of 32 sequences over caches of 16,384: 4.3 GB are read."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
HEADS = 8
TOKENS = 16_384
WIDTH = 128
SMALL = {"BATCH": 2, "HEADS": 3, "TOKENS": 21, "WIDTH": 8}


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, 1, WIDTH),
        torch.randn(BATCH, HEADS, TOKENS, WIDTH),
        torch.randn(BATCH, HEADS, TOKENS, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
