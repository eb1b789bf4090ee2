"""Frames of signals times a window, products with cosine and sine tables, power, mel filters, logarithm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 32
SAMPLES = 160_000
WINDOW = 400
HOP = 160
BINS = 201
FILTERS = 64


class Model(nn.Module):
    def __init__(self, window: int, hop: int, bins: int, filters: int) -> None:
        super().__init__()
        self.window, self.hop = window, hop
        steps = torch.arange(window)[:, None] * torch.arange(bins) * (2 * torch.pi / window)
        self.register_buffer("taper", torch.hann_window(window))
        self.register_buffer("cosine", torch.cos(steps))
        self.register_buffer("sine", torch.sin(steps))
        self.filters = nn.Parameter(torch.rand(bins, filters))

    def forward(self, signals: Tensor) -> Tensor:
        frames = signals.unfold(1, self.window, self.hop) * self.taper
        power = (frames @ self.cosine).square() + (frames @ self.sine).square()
        return torch.log(power @ self.filters + 1e-6)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SAMPLES)]


def get_init_inputs() -> list[object]:
    return [WINDOW, HOP, BINS, FILTERS]
