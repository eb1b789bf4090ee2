"""A language model's gated perceptron over 8,192 tokens, with its norm and residual."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS = 8_192
FEATURES = 4_096
HIDDEN = 11_008
SMALL = {"TOKENS": 9, "FEATURES": 16, "HIDDEN": 24}


class Model(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs() -> list[Tensor]:
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HIDDEN]
