"""Softmax over the middle dimension, along strided columns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 48
FEATURES = 640
LENGTH = 1_800


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, FEATURES, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
