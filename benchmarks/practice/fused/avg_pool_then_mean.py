"""Average pooling, then the mean over what is left, then a small linear layer: the pooling changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 24
CHANNELS = 96
HEIGHT = 160
WIDTH = 144
OUT_FEATURES = 50


class Model(nn.Module):
    def __init__(self, channels: int, out_features: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels, out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.avg_pool2d(x, 4).mean(dim=(2, 3)))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_FEATURES]
