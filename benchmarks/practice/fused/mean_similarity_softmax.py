"""Softmax over a set of each vector's mean similarity to another set: no similarity need be stored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 12
ROWS = 1_500
COLUMNS = 1_300
FEATURES = 256


class Model(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        similarity = torch.bmm(left, right.transpose(1, 2))
        return torch.softmax(similarity.mean(dim=2), dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, ROWS, FEATURES), torch.randn(BATCH, COLUMNS, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
