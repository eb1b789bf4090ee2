"""Eight-bit weights with a scale per column are turned into floats in full before a product."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 32
FEATURES = 8_192
OUT_FEATURES = 7_000


class Model(nn.Module):
    def forward(self, x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        weight = codes.to(x.dtype) * scales
        return F.relu(x @ weight)


def get_inputs() -> list[Tensor]:
    codes = torch.randint(-127, 128, (FEATURES, OUT_FEATURES), dtype=torch.int8)
    return [torch.randn(ROWS, FEATURES), codes, torch.rand(OUT_FEATURES) / 1000]


def get_init_inputs() -> list[object]:
    return []
