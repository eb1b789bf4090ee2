"""Layers that keep the lowest frequencies of a field, mix channels there, and come back: a neural operator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 32
LENGTH = 2_048
MODES = 20
LAYERS = 3


class Model(nn.Module):
    def __init__(self, channels: int, modes: int, layers: int) -> None:
        super().__init__()
        shape = (layers, channels, channels, modes)
        self.real = nn.Parameter(torch.randn(shape) / channels)
        self.imaginary = nn.Parameter(torch.randn(shape) / channels)
        self.enter = nn.Conv1d(2, channels, 1)
        self.direct = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
        self.leave = nn.Conv1d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for real, imaginary, direct in zip(self.real, self.imaginary, self.direct, strict=True):
            low = torch.fft.rfft(x)[..., : real.shape[-1]]
            mixed = torch.einsum("bim,iom->bom", low, torch.complex(real, imaginary))
            x = F.gelu(torch.fft.irfft(mixed, n=x.shape[-1]) + direct(x))
        return self.leave(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 2, LENGTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, MODES, LAYERS]
