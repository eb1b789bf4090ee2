"""The float64 oracle of whole models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cuda_agent_backend.tools.model_oracle import oracle


class Counts(nn.Module):
    def forward(self, places: Tensor) -> Tensor:
        counts = torch.zeros(places.shape[0], 5)
        ones = torch.ones_like(places, dtype=counts.dtype)
        return counts.scatter_add(1, places, ones) / 3


def test_what_a_model_makes_itself_is_in_float64_too() -> None:
    (found,) = oracle(Counts(), [torch.tensor([[0, 4, 4]])])
    assert torch.equal(found, torch.tensor([[1, 0, 0, 0, 2]]).double() / 3)
    assert torch.get_default_dtype() == torch.float32


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32).sin()


def test_a_cast_to_float32_stays_in_float64() -> None:
    x = torch.tensor([0.1, 2.0])
    (found,) = oracle(Cast(), [x])
    assert torch.equal(found, x.double().sin())
