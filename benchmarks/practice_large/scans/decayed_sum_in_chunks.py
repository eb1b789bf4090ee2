"""Exponentially decayed sums over time within chunks, as a product with a lower triangle that decays."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 64
CHUNKS = 64
LENGTH = 64
FEATURES = 1_024
SMALL = {"BATCH": 2, "CHUNKS": 3, "LENGTH": 8, "FEATURES": 5}


class Model(nn.Module):
    def forward(self, x: Tensor, rate: Tensor) -> Tensor:
        steps = torch.arange(x.shape[2], device=x.device)
        behind = (steps[:, None] - steps).to(x.dtype)
        weights = torch.where(behind >= 0, torch.exp(-rate * behind.clamp_min(0)), 0.0)
        return weights @ x


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHUNKS, LENGTH, FEATURES), torch.rand(())]


def get_init_inputs() -> list[object]:
    return []
