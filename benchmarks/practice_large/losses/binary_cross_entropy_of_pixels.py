"""Binary cross entropy of masks against drawn targets, weighted by pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
SIDE = 1_024
SMALL = {"BATCH": 3, "SIDE": 11}


class Model(nn.Module):
    def forward(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, targets, weights)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, SIDE, SIDE),
        torch.rand(BATCH, SIDE, SIDE),
        torch.rand(SIDE, SIDE),
    ]


def get_init_inputs() -> list[object]:
    return []
