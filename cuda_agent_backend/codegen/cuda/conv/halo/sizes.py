"""What a convolution that keeps its image in shared memory needs of it, and how many products it makes."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.conv.halo.match import Halo
from cuda_agent_backend.codegen.ir.device import ceildiv

CHUNK, PIECE = 16, 8
"""Channels that are multiplied at a time, and those of a piece (see `halo.cuh`)."""
PARTS = {6: 3, 3: 2}
"""Of a number, by how many products there are of two."""


def place_bytes(parts: int) -> int:
    """Of a place of the image in shared memory: its channels, split and before, and where it lies."""
    return CHUNK * (2 * parts + 4) + 4


def is_narrow(channels: int) -> bool:
    """Whether the last chunk has one piece only, so that two taps share a product of 16 terms."""
    return 0 < channels % CHUNK <= PIECE


def steps_of(halo: Halo) -> int:
    """Products of 16 terms for each result."""
    channels, taps = halo.channel[1], halo.tap_count
    if is_narrow(channels):
        return channels // CHUNK * taps + ceildiv(taps, 2)
    return ceildiv(channels, CHUNK) * taps
