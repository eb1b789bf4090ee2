"""Attention within windows of images, the second time with the windows shifted, with a bias by place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
FEATURES = 144
HEADS = 6
WINDOW = 8
HEIGHT = 56
WIDTH = 64


class WindowAttention(nn.Module):
    def __init__(self, features: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm = nn.LayerNorm(features)
        self.project = nn.Linear(features, 3 * features)
        self.join = nn.Linear(features, features)
        self.bias = nn.Parameter(torch.randn(heads, window * window, window * window))

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, _ = x.shape
        w = self.window
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(batch, height // w, w, width // w, w, -1).transpose(2, 3)
        parts = self.project(y.reshape(-1, w * w, x.shape[3]))
        queries, keys, values = parts.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.bias[None])
        y = self.join(y.transpose(1, 2).flatten(2))
        y = y.view(batch, height // w, width // w, w, w, -1).transpose(2, 3)
        return x + torch.roll(y.reshape(x.shape), (self.shift, self.shift), (1, 2))


class Model(nn.Module):
    def __init__(self, features: int, heads: int, window: int) -> None:
        super().__init__()
        self.plain = WindowAttention(features, heads, window, 0)
        self.shifted = WindowAttention(features, heads, window, window // 2)
        self.mlp = nn.Sequential(
            nn.LayerNorm(features),
            nn.Linear(features, 3 * features),
            nn.GELU(),
            nn.Linear(3 * features, features),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.shifted(self.plain(x))
        return x + self.mlp(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, HEIGHT, WIDTH, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HEADS, WINDOW]
