"""Product with a block-diagonal matrix that is written out in full: really one small product per block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 4_000
BLOCKS = 24
BLOCK = 150


class Model(nn.Module):
    def forward(self, x: Tensor, blocks: Tensor) -> Tensor:
        return x @ torch.block_diag(*blocks)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, BLOCKS * BLOCK), torch.randn(BLOCKS, BLOCK, BLOCK)]


def get_init_inputs() -> list[object]:
    return []
