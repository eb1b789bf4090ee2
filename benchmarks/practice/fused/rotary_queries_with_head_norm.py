"""Query projection, RMS norm of each head and rotation of its halves by position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 6
TOKENS = 1_400
FEATURES = 960
HEADS = 12


class Model(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(features, features, bias=False)
        self.norm = nn.RMSNorm(features // heads, eps=1e-6)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        heads = self.norm(self.project(x).unflatten(2, (self.heads, -1)))
        first, second = heads.transpose(1, 2).chunk(2, dim=-1)
        cosine, sine = torch.cos(angles), torch.sin(angles)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES), torch.randn(TOKENS, FEATURES // HEADS // 2)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HEADS]
