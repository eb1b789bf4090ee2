"""Change what input tensors hold between timed rounds, in place and at the cost of one copy.

A kernel that keeps results and looks whether its input is one that it has met must not gain by it. Redrawing would
take longer than most kernels that are timed; moving all elements by a random distance, and overwriting a few by
others, keeps every value one that was drawn, and changes both what lies at any place and what all of it adds up to.
Of few elements only the order changes: results that do not depend on it take no time to speak of.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sandbox.task.specs import TensorSpec

if TYPE_CHECKING:
    import torch

REPLACED = 16
"""Elements of each tensor that are overwritten by others of it."""
COPIED, CHUNK = 1 << 28, 1 << 24
"""Bytes of a tensor up to which all of it is copied to be moved; elements of a larger one that are moved at a time."""
FEW = 1024
"""Elements up to which they change places instead, and none is lost: what overwrites each other round by round is soon
all one number (of six, within some ten rounds), which is not what was drawn, nor changes any more."""


def perturb(tensors: Sequence[torch.Tensor], seed: int) -> None:
    """Change the tensors in place. The same seed does the same to the same values, on any device."""
    generator = random.Random(seed)
    for tensor in tensors:
        _perturb(tensor, generator)


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All memory between a strided tensor's first and last element, shape [extent]."""
    spec = TensorSpec("uint8", tuple(tensor.shape), tuple(tensor.stride()))
    return tensor.as_strided((spec.extent,), (1,))


def on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor on a device, strides kept: `to` lays out anew what has gaps or is expanded."""
    return flat_storage(tensor).to(device).as_strided(tensor.shape, tensor.stride())


def _perturb(tensor: torch.Tensor, generator: random.Random) -> None:
    line = flat_storage(tensor)
    if tensor.numel() < line.numel():  # what lies between the elements was never drawn
        values = tensor.reshape(-1).contiguous()
        _perturb(values, generator)
        tensor.copy_(values.reshape(tensor.shape))
        return
    count = line.numel()
    if count < 2:
        return
    by = generator.randrange(1, count)
    if count <= FEW:
        # In a circle; at most half of all, so that something moves for sure.
        places = generator.sample(range(count), min(REPLACED, count // 2))
        behind = [(place + by) % count for place in (*places[1:], places[0])]
        (_perturb_on_device if line.is_cuda else _perturb_on_host)(
            line, by, dict(zip(places, behind, strict=True))
        )
        return
    to = [generator.randrange(count) for _ in range(REPLACED)]
    source = [generator.randrange(count) for _ in range(REPLACED)]
    # Of two values for one place the last counts, and no other is written: on a GPU it need not win.
    others = dict(zip(to, source, strict=True))
    (_perturb_on_device if line.is_cuda else _perturb_on_host)(line, by, others)


def _perturb_on_host(line: torch.Tensor, by: int, others: Mapping[int, int]) -> None:
    elements, count = _elements(line), line.numel()
    before = elements.copy()
    elements[: count - by], elements[count - by :] = before[by:], before[:by]
    for place, other in others.items():
        elements[place] = before[other]


def _perturb_on_device(line: torch.Tensor, by: int, others: Mapping[int, int]) -> None:
    """In few launches, as a round may have many small tensors."""
    import torch

    if line.element_size() == 1:  # not every type of a byte can be moved by each of these
        line = line.view(torch.uint8)
    places, sources = torch.tensor([[*others], [*others.values()]]).to(line.device)
    replaced = line.index_select(0, sources)
    if line.nbytes <= COPIED:
        line.copy_(line.roll(-by))
    else:
        _roll(line, by)
    line.index_copy_(0, places, replaced)


def _roll(line: torch.Tensor, by: int) -> None:
    """As `roll` by -by, in place: each of both parts the other way round, and then all of it."""
    for part in (line[:by], line[by:], line):
        _reverse(part)


def _reverse(line: torch.Tensor) -> None:
    """In place, from both ends, with memory for a chunk of each."""
    half = len(line) // 2
    for start in range(0, half, CHUNK):
        stop = min(start + CHUNK, half)
        front, back = line[start:stop], line[len(line) - stop : len(line) - start]
        kept = front.flip(0)
        front.copy_(back.flip(0))
        back.copy_(kept)


def _elements(line: torch.Tensor) -> Any:
    """A NumPy view, one row of bytes per element: NumPy copies in this thread, torch would wake others."""
    import torch

    return line.view(torch.uint8).numpy().reshape(line.numel(), line.element_size())
