"""Scores of all pairs of tokens within each document by one matrix between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 64
TOKENS = 1_500
FEATURES = 640
SMALL = {"BATCH": 2, "TOKENS": 5, "FEATURES": 6}


class Model(nn.Module):
    def forward(self, x: Tensor, middle: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bik,kl,bjl->bij", x, middle, y)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, TOKENS, FEATURES),
        0.04 * torch.randn(FEATURES, FEATURES),
        torch.randn(BATCH, TOKENS, FEATURES),
    ]


def get_init_inputs() -> list[object]:
    return []
