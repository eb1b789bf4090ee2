"""Mixes the channel axis of images with a matrix, in place of a pointwise convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 8
CHANNELS = 130
OUT_CHANNELS = 90
HEIGHT = 150
WIDTH = 170


class Model(nn.Module):
    def forward(self, x: Tensor, mixing: Tensor) -> Tensor:
        return torch.einsum("nchw,cd->ndhw", x, mixing)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), torch.randn(CHANNELS, OUT_CHANNELS)]


def get_init_inputs() -> list[object]:
    return []
