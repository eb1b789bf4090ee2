"""Mean and maximum of each channel of an image, joined."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 128
CHANNELS = 512
SIDE = 96
SMALL = {"BATCH": 2, "CHANNELS": 5, "SIDE": 7}


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return []
