"""Two steps down, two steps up, with skip connections and group norms: a small segmentation network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 3
CHANNELS = 28
HEIGHT = 152
WIDTH = 136
CLASSES = 5


def stage(channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 3, padding=1),
        nn.GroupNorm(4, out_channels),
        nn.SiLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.SiLU(),
    )


class Model(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        c = channels
        self.down = nn.ModuleList([stage(1, c), stage(c, 2 * c)])
        self.bottom = stage(2 * c, 4 * c)
        self.enlarge = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2),
                nn.ConvTranspose2d(2 * c, c, 2, stride=2),
            ]
        )
        self.up = nn.ModuleList([stage(4 * c, 2 * c), stage(2 * c, c)])
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            x = up(torch.cat([enlarge(x), skips.pop()], dim=1))
        return self.head(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 1, HEIGHT, WIDTH)]


def get_init_inputs() -> list[object]:
    return [CHANNELS, CLASSES]
