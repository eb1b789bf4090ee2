"""Inputs that differ from others by rounding: what eager's errors are on them says how uncertain a result is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from sandbox.accuracy.perturb_inputs import flat_storage

if TYPE_CHECKING:
    import torch

DRAWS = 3
CHUNK = 1 << 26
"""Elements moved in one go."""
_T = TypeVar("_T")


def moved(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Copies with the same strides, floating values one unit in the last place up or down. Zeros and what is not finite
    stay, so that no value changes its sign or leaves the domain of a root, and so do types that torch does no
    arithmetic in."""
    import torch

    generators = {x.device: torch.Generator(x.device).manual_seed(seed) for x in tensors}
    return [_moved(x, generators[x.device]) if _moves(x) else x for x in tensors]


def move(tensors: Sequence[torch.Tensor], seed: int) -> None:
    """As `moved`, in place."""
    import torch

    generators = {x.device: torch.Generator(x.device).manual_seed(seed) for x in tensors}
    for x in tensors:
        if _moves(x):
            _move(flat_storage(x), flat_storage(x), generators[x.device])


def _moves(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.itemsize > 1


def several(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """`DRAWS` such copies, one after the other."""
    return (moved(tensors, seed) for seed in range(DRAWS))


def while_there_is_room(results: Iterator[_T]) -> Iterator[_T]:
    """What they are until memory runs out for copies: what there is so far is the yardstick then."""
    with suppress(RuntimeError):
        yield from results


def _moved(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    line = flat_storage(x)
    found = torch.empty_like(line)
    _move(line, found, generator)
    return found.as_strided(x.shape, x.stride())


def _move(line: torch.Tensor, to: torch.Tensor, generator: torch.Generator) -> None:
    """Both [n]; they may be the same."""
    import torch

    by = torch.finfo(line.dtype).eps
    for part, place in zip(line.split(CHUNK), to.split(CHUNK), strict=True):
        up = torch.empty(part.shape, dtype=torch.bool, device=part.device)
        up.random_(0, 2, generator=generator)
        found = torch.where(up, part * (1 + by), part * (1 - by))
        place.copy_(torch.where(found.isfinite(), found, part))
