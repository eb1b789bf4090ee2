"""Radius and angle to two coordinates: two tensors in, two out, 1.2 GB each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTH = 300_000_011
SMALL = {"LENGTH": 999}


class Model(nn.Module):
    def forward(self, radius: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        return radius * torch.cos(angle), radius * torch.sin(angle)


def get_inputs() -> list[Tensor]:
    return [torch.rand(LENGTH), torch.randn(LENGTH)]


def get_init_inputs() -> list[object]:
    return []
