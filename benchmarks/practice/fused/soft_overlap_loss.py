"""Overlap of predicted and wanted masks per channel, from three sums over space."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 16
CHANNELS = 12
HEIGHT = 400
WIDTH = 380


class Model(nn.Module):
    def forward(self, logits: Tensor, wanted: Tensor) -> Tensor:
        likely = torch.sigmoid(logits)
        shared = (likely * wanted).sum(dim=(2, 3))
        total = likely.sum(dim=(2, 3)) + wanted.sum(dim=(2, 3))
        return 1 - ((2 * shared + 1) / (total + 1)).mean(dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), torch.rand(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
