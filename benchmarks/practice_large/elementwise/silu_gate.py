"""One half of a gated layer: SiLU of one tensor times another, 2 GB each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 65_536
COLUMNS = 8_192
SMALL = {"ROWS": 6, "COLUMNS": 40}


class Model(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[object]:
    return []
