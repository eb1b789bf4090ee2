"""Inputs that differ from others by rounding: what eager's errors are on them says how uncertain a result is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sandbox.stir import flat_storage

if TYPE_CHECKING:
    import torch

DRAWS = 3


def moved(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Copies with the same strides, floating values one unit in the last place up or down. Zeros and what is not finite
    stay, so that no value changes its sign or leaves the domain of a root."""
    import torch

    device = tensors[0].device if tensors else torch.device("cpu")
    generator = torch.Generator(device).manual_seed(seed)
    return [_moved(x, generator) if x.is_floating_point() else x for x in tensors]


def several(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """`DRAWS` such copies, one after the other."""
    return (moved(tensors, seed) for seed in range(DRAWS))


def _moved(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    line = flat_storage(x)
    up = torch.randint(0, 2, line.shape, generator=generator, device=line.device).bool()
    by = torch.finfo(x.dtype).eps
    found = torch.where(up, line * (1 + by), line * (1 - by))
    return torch.where(found.isfinite(), found, line).as_strided(x.shape, x.stride())
