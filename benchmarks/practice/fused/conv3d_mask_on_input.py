"""3D convolution, SiLU, weighted sum over channels to one mask, which multiplies the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 3
CHANNELS = 20
OUT_CHANNELS = 44
DEPTH = 28
HEIGHT = 72
WIDTH = 68


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, 3, padding=1)
        self.weights = nn.Parameter(torch.randn(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        features = F.silu(self.conv(x))
        mask = torch.sigmoid(torch.einsum("ncdhw,c->ndhw", features, self.weights))
        return x * mask[:, None]


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT_CHANNELS]
