"""How many bytes of each row are large; there are more elements than 32 bits count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 33_000
COLUMNS = 66_001
SMALL = {"ROWS": 9, "COLUMNS": 301}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 64).sum(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randint(-128, 128, (ROWS, COLUMNS), dtype=torch.int8)]


def get_init_inputs() -> list[object]:
    return []
