"""A deep autoencoder whose decoder uses the encoder's weights transposed."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
WIDTHS = (2_400, 900, 300, 40)


class Model(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.weights = nn.ParameterList(torch.randn(b, a) / a**0.5 for a, b in pairs)
        self.into = nn.ParameterList(torch.randn(b) / 10 for _, b in pairs)
        self.back = nn.ParameterList(torch.randn(a) / 10 for a, _ in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in zip(self.weights, self.into, strict=True):
            x = F.selu(F.linear(x, weight, bias))
        for weight, bias in reversed(list(zip(self.weights, self.back, strict=True))):
            x = F.selu(x @ weight + bias)
        return x


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDTHS[0])]


def get_init_inputs() -> list[object]:
    return [*WIDTHS]
