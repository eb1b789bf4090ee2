"""Two networks turn users and items into unit vectors; scores are all their products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
ITEMS = 3_000
USER_FEATURES = 130
ITEM_FEATURES = 90
WIDTH = 192


def tower(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, 2 * width), nn.Mish(), nn.Linear(2 * width, width), nn.LayerNorm(width)
    )


class Model(nn.Module):
    def __init__(self, user_features: int, item_features: int, width: int) -> None:
        super().__init__()
        self.users = tower(user_features, width)
        self.items = tower(item_features, width)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        left = F.normalize(self.users(users), dim=1)
        return left @ F.normalize(self.items(items), dim=1).T


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, USER_FEATURES), torch.randn(ITEMS, ITEM_FEATURES)]


def get_init_inputs() -> list[object]:
    return [USER_FEATURES, ITEM_FEATURES, WIDTH]
