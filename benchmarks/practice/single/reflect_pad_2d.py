"""Images extended by their mirror image, by another width on each side."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 24
CHANNELS = 20
HEIGHT = 300
WIDTH = 310


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (17, 23, 9, 31), mode="reflect")


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
