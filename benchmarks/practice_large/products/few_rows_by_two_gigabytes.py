"""Four rows by weights of 2 GB, as when a large model decodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 4
FEATURES = 8_192
HIDDEN = 65_537
SMALL = {"ROWS": 2, "FEATURES": 24, "HIDDEN": 33}


class Model(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HIDDEN]
