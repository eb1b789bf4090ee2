"""Three streams of unlike widths joined into rows, each with another activation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 200_000
FIRST = 1_000
SECOND = 513
THIRD = 1_999
SMALL = {"ROWS": 5, "FIRST": 6, "SECOND": 7, "THIRD": 9}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.cat([torch.relu(x), torch.tanh(y), torch.sigmoid(z)], dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FIRST), torch.randn(ROWS, SECOND), torch.randn(ROWS, THIRD)]


def get_init_inputs() -> list[object]:
    return []
