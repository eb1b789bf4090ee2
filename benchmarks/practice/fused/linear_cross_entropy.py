"""Cross entropy right after the layer that gives 30,000 logits: they need not be stored."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 3_000
FEATURES = 512
CLASSES = 30_011


class Model(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x), targets)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,))]


def get_init_inputs() -> list[object]:
    return [FEATURES, CLASSES]
