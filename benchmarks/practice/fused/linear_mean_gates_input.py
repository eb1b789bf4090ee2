"""Mean over the outputs of a linear layer opens a gate on its input: the layer shrinks to one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 3_000
FEATURES = 5_000
OUT_FEATURES = 4_000


class Model(nn.Module):
    def __init__(self, features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(4 * self.linear(x).mean(dim=1, keepdim=True))
        return x * gate


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, OUT_FEATURES]
