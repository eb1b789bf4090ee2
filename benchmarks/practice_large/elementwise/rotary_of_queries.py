"""Rotary positions on queries: both halves of each head are read twice by eager, once by need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
HEADS = 32
TOKENS = 4_096
WIDTH = 128
SMALL = {"BATCH": 2, "HEADS": 3, "TOKENS": 5, "WIDTH": 8}


class Model(nn.Module):
    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cosine + torch.cat([-right, left], dim=-1) * sine


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, TOKENS, WIDTH),
        torch.rand(TOKENS, WIDTH),
        torch.rand(TOKENS, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
