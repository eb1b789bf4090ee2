"""Huber loss of two tensors of 2.4 GB, a mean for each sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLES = 600
LENGTH = 1_000_001
SMALL = {"SAMPLES": 5, "LENGTH": 203}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(x, y, reduction="none", delta=0.7).mean(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(SAMPLES, LENGTH), torch.randn(SAMPLES, LENGTH)]


def get_init_inputs() -> list[object]:
    return []
