"""Product of written-out one-hot rows with a table: really a look-up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 12_000
ENTRIES = 3_000
FEATURES = 200


class Model(nn.Module):
    def forward(self, indices: Tensor, table: Tensor) -> Tensor:
        entries = torch.arange(table.shape[0], device=indices.device)
        return (indices[:, None] == entries).to(table.dtype) @ table


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (ROWS,)), torch.randn(ENTRIES, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
