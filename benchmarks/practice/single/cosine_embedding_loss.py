"""Pulls pairs of vectors together or apart by their cosine, as a target of plus or minus one says."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 50_000
FEATURES = 600


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor, targets: Tensor) -> Tensor:
        return F.cosine_embedding_loss(left, right, targets, margin=0.2)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(ROWS, FEATURES),
        torch.randn(ROWS, FEATURES),
        2 * torch.randint(2, (ROWS,)) - 1,
    ]


def get_init_inputs() -> list[object]:
    return []
