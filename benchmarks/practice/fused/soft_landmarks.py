"""Convolution to maps, softmax over all positions of each, and the expected place: two numbers per map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 20
CHANNELS = 48
MAPS = 68
HEIGHT = 128
WIDTH = 120


class Model(nn.Module):
    def __init__(self, channels: int, maps: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, maps, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.conv(x)
        weights = torch.softmax(maps.flatten(2), dim=2).view_as(maps)
        rows = torch.linspace(-1, 1, maps.shape[2], device=x.device, dtype=x.dtype)
        columns = torch.linspace(-1, 1, maps.shape[3], device=x.device, dtype=x.dtype)
        down = (weights.sum(dim=3) * rows).sum(dim=2)
        across = (weights.sum(dim=2) * columns).sum(dim=2)
        return torch.stack([down, across], dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, MAPS]
