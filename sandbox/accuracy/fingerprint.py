"""One number for what a tensor holds, by a seed that its writer does not know: whether inputs are still what they were.

A sum over all words of their bits, each times an odd number made from its place and the seed, modulo 2**64. Words are
of 32 bits at most: of 64, two that differ in the highest one only would cancel each other by any odd numbers. Whoever
changes words without knowing the seed goes unseen once in 2**31 times or less. Order does not matter: any device comes
to the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.accuracy.perturb_inputs import flat_storage

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 22
"""Words at a time: what is worked out beside them takes 32 MB a step."""
FIRST, SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64)
"""Odd numbers that spread places over all bits, as SplitMix64 does."""
WORDS = {1: "int8", 2: "int16"}
"""By an element's bytes; larger ones are several int32."""


def fingerprints(tensors: Sequence[torch.Tensor], seed: int) -> list[int]:
    """A number for each tensor. seed: below 2**63. Elements count, what lies between them does not."""
    return [_fingerprint(tensor, seed + number) for number, tensor in enumerate(tensors)]


def _fingerprint(tensor: torch.Tensor, seed: int) -> int:
    import torch

    words = _words(tensor)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK].to(torch.int64)
        total += (part * _factors(start, len(part), seed, part.device)).sum()
    return int(total)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of all elements, as integers in one line."""
    import torch

    line = flat_storage(tensor)
    if tensor.numel() < line.numel():  # what lies between the elements was never drawn
        line = tensor.reshape(-1)
    return line.view(getattr(torch, WORDS.get(tensor.itemsize, "int32")))


def _factors(start: int, count: int, seed: int, device: torch.device) -> torch.Tensor:
    """Odd numbers for places start to start + count."""
    import torch

    mixed = torch.arange(start, start + count, device=device).mul_(FIRST).add_(_signed(seed))
    mixed ^= mixed >> 30
    mixed *= SECOND
    mixed ^= mixed >> 27
    mixed *= FIRST
    return mixed.bitwise_or_(1)


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
