"""Mean over the middle of three dimensions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 64
FEATURES = 900
LENGTH = 1_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
