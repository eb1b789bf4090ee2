"""The covariance of a thousand features over half a million samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SAMPLES = 500_000
FEATURES = 1_024
SMALL = {"SAMPLES": 65, "FEATURES": 7}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=0)
        return centred.T @ centred / (x.shape[0] - 1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(SAMPLES, FEATURES)]


def get_init_inputs() -> list[object]:
    return []
