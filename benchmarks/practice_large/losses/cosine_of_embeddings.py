"""Cosines of pairs of rows, and how far they are from wanted ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 250_000
COLUMNS = 1_536
SMALL = {"ROWS": 7, "COLUMNS": 13}


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor, wanted: Tensor) -> Tensor:
        return (F.cosine_similarity(x, y, dim=1) - wanted).square().mean()


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), torch.rand(ROWS)]


def get_init_inputs() -> list[object]:
    return []
