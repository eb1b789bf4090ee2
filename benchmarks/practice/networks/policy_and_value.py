"""A policy with two heads for a single observation of pixels and numbers: latency of a dozen tiny kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEIGHT = 84
WIDTH = 92
NUMBERS = 19
ACTIONS = 14


class Model(nn.Module):
    def __init__(self, numbers: int, actions: int) -> None:
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(2, 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.join = nn.Linear(512 + numbers, 256)
        self.policy = nn.Linear(256, actions)
        self.value = nn.Linear(256, 1)

    def forward(self, pixels: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        joined = F.relu(self.join(torch.cat([self.eyes(pixels), numbers], dim=1)))
        return torch.softmax(self.policy(joined), dim=1), torch.tanh(self.value(joined))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 2, HEIGHT, WIDTH), torch.randn(1, NUMBERS)]


def get_init_inputs() -> list[object]:
    return [NUMBERS, ACTIONS]
