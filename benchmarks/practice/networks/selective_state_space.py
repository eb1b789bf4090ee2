"""A state space block: short causal convolution, inputs that set their own step and matrices, and a loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
STEPS = 64
FEATURES = 192
STATE = 16


class Model(nn.Module):
    def __init__(self, features: int, state: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, 2 * features)
        self.conv = nn.Conv1d(features, features, 4, groups=features)
        self.select = nn.Linear(features, 2 * state)
        self.step = nn.Linear(features, features)
        self.rates = nn.Parameter(torch.rand(features, state))
        self.direct = nn.Parameter(torch.randn(features))
        self.leave = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.enter(x).chunk(2, dim=-1)
        value = F.silu(self.conv(F.pad(value.transpose(1, 2), (3, 0)))).transpose(1, 2)
        into, out = self.select(value).chunk(2, dim=-1)
        step = F.softplus(self.step(value))
        keep = torch.exp(-step[..., None] * self.rates)
        add = (step * value)[..., None] * into[:, :, None]
        state = torch.zeros_like(add[:, 0])
        outputs = []
        for i in range(x.shape[1]):
            state = keep[:, i] * state + add[:, i]
            outputs.append((state * out[:, i, None]).sum(dim=-1))
        mixed = torch.stack(outputs, dim=1) + self.direct * value
        return x + self.leave(mixed * F.silu(gate))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, STEPS, FEATURES)]


def get_init_inputs() -> list[object]:
    return [FEATURES, STATE]
