"""Several processes that learn together. Each has its share of the episodes; sums go over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """rank: which process this is, of ``world`` ones. device: where its models are."""

    rank: int
    world: int
    device: torch.device

    def sum(self, value: Tensor) -> Tensor:
        """Of all processes' tensors; every process must ask for it."""
        ...

    def everyones(self, value: Any) -> list[Any]:
        """All processes' values, by rank."""
        ...


class Alone:
    """The only process."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.rank, self.world, self.device = 0, 1, torch.device(device)

    def sum(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value

    def everyones(self, value: Any) -> list[Any]:
        """The one value."""
        return [value]


PATIENCE = timedelta(hours=2)
"""How long one process waits for another: episodes of a large model are played for very unequal times."""


class Accelerated:
    """The processes that ``accelerate launch`` or ``torchrun`` started; one GPU each where there are any."""

    def __init__(self) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        self._accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)])
        self.rank = int(self._accelerator.process_index)
        self.world = int(self._accelerator.num_processes)
        self.device = self._accelerator.device

    def sum(self, value: Tensor) -> Tensor:
        """See `Ranks`."""
        total: Tensor = self._accelerator.reduce(value.to(self.device), reduction="sum")
        return total.to(value.device)

    def everyones(self, value: Any) -> list[Any]:
        """See `Ranks`."""
        from accelerate.utils import gather_object

        return list(gather_object([value]))


def first_finds(ranks: Ranks, find: Callable[[], T]) -> T:
    """What the first process finds, in all of them; every process must ask for it.

    Of what may change meanwhile, as the files of a folder, each would find something else, and go another way.
    """
    found = find() if ranks.rank == 0 else None
    firsts: T = ranks.everyones(found)[0]
    return firsts


def add_gradients(parameters: Iterable[torch.nn.Parameter], ranks: Ranks) -> None:
    """Have every process hold the sum of all processes' gradients, exchanged as one tensor."""
    if ranks.world == 1:
        return
    ours = list(parameters)
    flat = torch.cat([_gradient(p).reshape(-1) for p in ours])
    total = ranks.sum(flat)
    for parameter, part in zip(ours, total.split([p.numel() for p in ours]), strict=True):
        parameter.grad = part.view_as(parameter).clone()


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def share(items: Sequence[Any], ranks: Ranks) -> list[Any]:
    """The items of this process: every so-manieth."""
    return list(items[ranks.rank :: ranks.world])
