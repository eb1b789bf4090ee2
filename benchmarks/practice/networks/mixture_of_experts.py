"""Twelve small networks, all of which run on all tokens although two count for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
TOKENS = 200
FEATURES = 256
MIDDLE = 512
EXPERTS = 12


class Model(nn.Module):
    def __init__(self, features: int, middle: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(features, experts, bias=False)
        self.first = nn.Parameter(torch.randn(experts, features, middle) / features**0.5)
        self.second = nn.Parameter(torch.randn(experts, middle, features) / middle**0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        best, chosen = torch.topk(self.router(tokens), 2, dim=1)
        shares = torch.softmax(best, dim=1)
        gates = torch.zeros_like(tokens[:, : self.first.shape[0]]).scatter(1, chosen, shares)
        inner = F.gelu(torch.einsum("tf,efm->etm", tokens, self.first))
        outputs = torch.bmm(inner, self.second)
        return x + torch.einsum("te,etf->tf", gates, outputs).view_as(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, MIDDLE, EXPERTS]
