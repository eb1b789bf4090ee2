"""The memory of a device, as its driver reports it to any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Room:
    """Bytes of a device: in all, and free, whoever holds the rest."""

    total: int
    free: int


class DeviceMemory(Protocol):
    """What leases ask; tests ask a device that is none."""

    def room(self) -> Room:
        """As it is now."""


class CudaMemory:
    """The first GPU's. Makes a context in this process."""

    def room(self) -> Room:
        """As it is now."""
        import torch

        free, total = torch.cuda.mem_get_info(0)
        return Room(total, free)


class Unlimited:
    """Of a machine whose memory nobody counts, as for cpu."""

    def room(self) -> Room:
        """All is free."""
        return Room(1 << 62, 1 << 62)
