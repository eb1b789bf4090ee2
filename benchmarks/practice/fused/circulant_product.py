"""Product with a circulant matrix that is built by look-up: every row is the first one, shifted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 3_500
FEATURES = 2_100


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(features) / features**0.5)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        circulant = self.first[(places[None, :] - places[:, None]) % x.shape[1]]
        return F.silu(x @ circulant)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES]
