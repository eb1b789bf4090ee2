"""A matrix whose entries far from the diagonal are dropped, times a dense one: a tenth of the products count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 4_000
BAND = 200
COLUMNS = 1_500


class Model(nn.Module):
    def __init__(self, band: int) -> None:
        super().__init__()
        self.band = band

    def forward(self, square: Tensor, dense: Tensor) -> Tensor:
        banded = torch.triu(torch.tril(square, self.band), -self.band)
        return banded @ dense


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIZE, SIZE), torch.randn(SIZE, COLUMNS)]


def get_init_inputs() -> list[object]:
    return [BAND]
