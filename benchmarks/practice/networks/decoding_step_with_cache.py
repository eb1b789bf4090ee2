"""One new token per sequence through a block with RMS norms, rotation, shared keys and a cache of a thousand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6
PAST = 1_023
FEATURES = 1_152
HEADS = 18
KEY_HEADS = 3
MIDDLE = 2_900


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cosine, sine = torch.cos(angles), torch.sin(angles)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Model(nn.Module):
    def __init__(self, features: int, heads: int, key_heads: int, middle: int) -> None:
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        width = features // heads
        self.norms = nn.ModuleList(nn.RMSNorm(features, eps=1e-5) for _ in range(2))
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(features, key_heads * width, bias=False)
        self.value = nn.Linear(features, key_heads * width, bias=False)
        self.join = nn.Linear(features, features, bias=False)
        self.gate = nn.Linear(features, middle, bias=False)
        self.up = nn.Linear(features, middle, bias=False)
        self.down = nn.Linear(middle, features, bias=False)
        rates = 10_000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("rates", rates)

    def forward(self, x: Tensor, past_keys: Tensor, past_values: Tensor) -> Tensor:
        y = self.norms[0](x)
        angles = past_keys.shape[2] * self.rates
        queries = rotate(self.query(y).unflatten(1, (self.heads, 1, -1)), angles)
        keys = rotate(self.key(y).unflatten(1, (self.key_heads, 1, -1)), angles)
        values = self.value(y).unflatten(1, (self.key_heads, 1, -1))
        mixed = F.scaled_dot_product_attention(
            queries,
            torch.cat([past_keys, keys], dim=2),
            torch.cat([past_values, values], dim=2),
            enable_gqa=True,
        )
        x = x + self.join(mixed.flatten(1))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs() -> list[Tensor]:
    past = (BATCH, KEY_HEADS, PAST, FEATURES // HEADS)
    return [torch.randn(BATCH, FEATURES), torch.randn(past), torch.randn(past)]


def get_init_inputs() -> list[object]:
    return [FEATURES, HEADS, KEY_HEADS, MIDDLE]
