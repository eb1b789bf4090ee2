"""Sixty-four experts, each with its own tokens and weights, and SiLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EXPERTS = 64
TOKENS = 1_024
FEATURES = 1_024
HIDDEN = 2_048
SMALL = {"EXPERTS": 3, "TOKENS": 5, "FEATURES": 8, "HIDDEN": 6}


class Model(nn.Module):
    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return F.silu(torch.einsum("gtd,gdh->gth", x, weights))


def get_inputs() -> list[Tensor]:
    return [torch.randn(EXPERTS, TOKENS, FEATURES), 0.03 * torch.randn(EXPERTS, FEATURES, HIDDEN)]


def get_init_inputs() -> list[object]:
    return []
