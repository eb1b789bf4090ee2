"""Strided convolutions to a short code and transposed ones back; the result is the error per image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 20
CHANNELS = 24
HEIGHT = 96
WIDTH = 80
CODE = 64


class Model(nn.Module):
    def __init__(self, channels: int, height: int, width: int, code: int) -> None:
        super().__init__()
        self.c, self.h, self.w = 3 * channels, height // 8, width // 8
        self.down = nn.Sequential(
            nn.Conv2d(3, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * channels, 3 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
        )
        self.encode = nn.Linear(self.c * self.h * self.w, code)
        self.decode = nn.Linear(code, self.c * self.h * self.w)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(3 * channels, 2 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        code = self.encode(self.down(x).flatten(1))
        small = F.relu(self.decode(code)).view(-1, self.c, self.h, self.w)
        return (self.up(small) - x).square().mean(dim=(1, 2, 3))


def get_inputs() -> list[Tensor]:
    return [torch.rand(BATCH, 3, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, HEIGHT, WIDTH, CODE]
