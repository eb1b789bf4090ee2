"""Subtracts from each value the mean of its row so far, then scales by the row's largest magnitude."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 3_000
COLUMNS = 12_000


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        centred = x - torch.cumsum(x, dim=1) / counts
        return centred / (centred.abs().amax(dim=1, keepdim=True) + 1e-6)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
