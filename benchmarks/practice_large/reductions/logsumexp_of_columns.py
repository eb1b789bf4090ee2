"""Log of summed exponentials over the leading axis of 4.3 GB."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 262_144
COLUMNS = 4_099
SMALL = {"ROWS": 129, "COLUMNS": 11}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(x, dim=0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
