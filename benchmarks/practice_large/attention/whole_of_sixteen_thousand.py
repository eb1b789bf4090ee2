"""Attention without a mask over 16,384 tokens laid out as a projection leaves them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS = 16_384
HEADS = 32
WIDTH = 64
SMALL = {"TOKENS": 17, "HEADS": 2, "WIDTH": 8}


class Model(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in x.chunk(3, dim=2)
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, TOKENS, 3 * HEADS * WIDTH)]


def get_init_inputs() -> list[object]:
    return [HEADS]
