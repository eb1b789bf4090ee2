"""Triplet loss with the distance swap: three distances of three tensors, then a mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 30_000
FEATURES = 640


class Model(nn.Module):
    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(anchor, positive, negative, 0.7, swap=True)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
