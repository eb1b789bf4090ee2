"""Blocks in which one half of the channels, mixed along tokens, gates the other half."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
TOKENS = 180
FEATURES = 240
MIDDLE = 900
BLOCKS = 3


class Block(nn.Module):
    def __init__(self, tokens: int, features: int, middle: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.expand = nn.Linear(features, middle)
        self.gate_norm = nn.LayerNorm(middle // 2)
        self.mix = nn.Conv1d(tokens, tokens, 1)
        self.contract = nn.Linear(middle // 2, features)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = F.gelu(self.expand(self.norm(x))).chunk(2, dim=-1)
        return x + self.contract(value * self.mix(self.gate_norm(gate)))


class Model(nn.Module):
    def __init__(self, tokens: int, features: int, middle: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(tokens, features, middle) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [TOKENS, FEATURES, MIDDLE, BLOCKS]
