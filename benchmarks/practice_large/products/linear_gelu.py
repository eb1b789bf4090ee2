"""The first layer of a wide perceptron with its bias and GELU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS = 32_768
FEATURES = 4_096
HIDDEN = 8_192
SMALL = {"TOKENS": 9, "FEATURES": 16, "HIDDEN": 24}


class Model(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HIDDEN]
