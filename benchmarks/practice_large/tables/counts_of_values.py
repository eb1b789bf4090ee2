"""How often each of a million values occurs among 400 million drawn ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VALUES = 1_000_003
LENGTH = 400_000_009
SMALL = {"VALUES": 19, "LENGTH": 211}


class Model(nn.Module):
    def __init__(self, values: int) -> None:
        super().__init__()
        self.values = values

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.zeros(self.values, dtype=torch.int32, device=x.device)
        return counts.index_add(0, x, torch.ones_like(x))


def get_inputs() -> list[Tensor]:
    return [torch.randint(VALUES, (LENGTH,), dtype=torch.int32)]


def get_init_inputs() -> list[object]:
    return [VALUES]
