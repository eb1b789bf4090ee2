"""Attention within windows of 256 of sequences of 65,536, each with the window before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEADS = 16
WINDOWS = 256
LENGTH = 256
WIDTH = 64
SMALL = {"HEADS": 2, "WINDOWS": 3, "LENGTH": 5, "WIDTH": 8}


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (torch.cat([torch.roll(x, 1, 1), x], dim=2) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(HEADS, WINDOWS, LENGTH, WIDTH),
        torch.randn(HEADS, WINDOWS, LENGTH, WIDTH),
        torch.randn(HEADS, WINDOWS, LENGTH, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
