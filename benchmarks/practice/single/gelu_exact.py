"""GELU by the error function: as much arithmetic as a pointwise operator gets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 7_000
COLUMNS = 9_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
