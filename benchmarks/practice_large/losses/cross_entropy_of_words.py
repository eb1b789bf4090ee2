"""Cross entropy over a vocabulary of 128,256: 4.2 GB of logits to one number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS = 8_192
WORDS = 128_256
SMALL = {"TOKENS": 9, "WORDS": 101}


class Model(nn.Module):
    def forward(self, logits: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(logits, words)


def get_inputs() -> list[Tensor]:
    return [torch.randn(TOKENS, WORDS), torch.randint(WORDS, (TOKENS,))]


def get_init_inputs() -> list[object]:
    return []
