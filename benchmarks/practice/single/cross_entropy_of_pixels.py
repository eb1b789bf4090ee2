"""Mean cross entropy per image, over 19 classes a pixel with class weights: classes are strided."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 10
CLASSES = 19
HEIGHT = 500
WIDTH = 600


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(classes) + 0.5)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, targets, self.weights, reduction="none")
        return losses.mean(dim=(1, 2))


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, CLASSES, HEIGHT, WIDTH),
        torch.randint(CLASSES, (BATCH, HEIGHT, WIDTH)),
    ]


def get_init_inputs() -> list[object]:
    return [CLASSES]
