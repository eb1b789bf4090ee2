"""Binary cross entropy from logits with a weight for each label."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 6_000
LABELS = 5_000


class Model(nn.Module):
    def __init__(self, labels: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(labels) * 4)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.weights)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, LABELS), torch.rand(ROWS, LABELS)]


def get_init_inputs() -> list[object]:
    return [LABELS]
