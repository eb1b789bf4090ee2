"""Blocks that mix patches by linear layers along tokens and along channels in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 12
TOKENS = 140
FEATURES = 288
BLOCKS = 4


class Block(nn.Module):
    def __init__(self, tokens: int, features: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(2))
        self.tokens = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(features, 3 * features), nn.GELU(), nn.Linear(3 * features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, tokens: int, features: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(tokens, features) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).mean(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [TOKENS, FEATURES, BLOCKS]
