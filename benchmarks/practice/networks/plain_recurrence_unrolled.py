"""A tanh recurrence written as a loop over 50 steps, returning all states: two kernels or more a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 32
STEPS = 50
FEATURES = 150
STATE = 400


class Model(nn.Module):
    def __init__(self, features: int, state: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, state)
        self.recur = nn.Linear(state, state, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.recur.in_features)
        states = []
        for step in x.unbind(dim=1):
            state = torch.tanh(self.enter(step) + self.recur(state))
            states.append(state)
        return torch.stack(states, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, STEPS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, STATE]
