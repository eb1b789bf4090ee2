"""Kullback-Leibler divergence of each row's distribution, summed per row: two logarithmic inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 5_000
COLUMNS = 6_000


class Model(nn.Module):
    def forward(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(dim=1)


def get_inputs() -> list[Tensor]:
    shape = (ROWS, COLUMNS)
    return [torch.log_softmax(torch.randn(shape), 1), torch.log_softmax(torch.randn(shape), 1)]


def get_init_inputs() -> list[object]:
    return []
