"""Pages of a cache of keys gathered into the order of their sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PAGES = 8_192
LENGTH = 16
HEADS = 8
WIDTH = 128
SEQUENCES = 32
EACH = 192
SMALL = {"PAGES": 13, "LENGTH": 3, "HEADS": 2, "WIDTH": 8, "SEQUENCES": 2, "EACH": 4}


class Model(nn.Module):
    def forward(self, cache: Tensor, pages: Tensor) -> Tensor:
        return cache[pages].flatten(1, 2).transpose(1, 2).contiguous()


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(PAGES, LENGTH, HEADS, WIDTH),
        torch.randint(PAGES, (SEQUENCES, EACH)),
    ]


def get_init_inputs() -> list[object]:
    return []
