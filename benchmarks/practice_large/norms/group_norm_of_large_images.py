"""Group norm and SiLU on images of a decoder's last stage."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 24
CHANNELS = 128
SIDE = 512
GROUPS = 32
SMALL = {"BATCH": 2, "CHANNELS": 8, "SIDE": 6, "GROUPS": 4}


class Model(nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return [GROUPS, CHANNELS]
