"""A GRU from both ends over embedded tokens, and a label for each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 16
STEPS = 60
ENTRIES = 7_000
FEATURES = 128
STATE = 200
LABELS = 23


class Model(nn.Module):
    def __init__(self, entries: int, features: int, state: int, labels: int) -> None:
        super().__init__()
        self.words = nn.Embedding(entries, features)
        self.gru = nn.GRU(features, state, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * state, labels)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.gru(self.words(tokens))[0]), dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randint(ENTRIES, (BATCH, STEPS))]


def get_init_inputs() -> list[object]:
    return [ENTRIES, FEATURES, STATE, LABELS]
