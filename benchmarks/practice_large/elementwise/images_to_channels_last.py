"""Images from planes to pixels, normalised by means and deviations of each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 512
CHANNELS = 12
SIDE = 320
SMALL = {"BATCH": 3, "CHANNELS": 3, "SIDE": 9}


class Model(nn.Module):
    def forward(self, x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        return (x.permute(0, 2, 3, 1).contiguous() - mean) / (deviation + 0.5)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE), torch.rand(CHANNELS), torch.rand(CHANNELS)]


def get_init_inputs() -> list[object]:
    return []
