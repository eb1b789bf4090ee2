"""Attention of a single query per head over thousands of keys, written out: all time goes to reading them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 8
HEADS = 12
TOKENS = 6_000
HEAD_DIM = 96


class Model(nn.Module):
    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = query @ keys.transpose(-2, -1) / keys.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ values


def get_inputs() -> list[Tensor]:
    shape = (BATCH, HEADS, TOKENS, HEAD_DIM)
    return [torch.randn(BATCH, HEADS, 1, HEAD_DIM), torch.randn(shape), torch.randn(shape)]


def get_init_inputs() -> list[object]:
    return []
