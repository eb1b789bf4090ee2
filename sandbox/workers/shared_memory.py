"""Memory that two processes see: anonymous files, and tensors laid over them.

Anonymous files (memfd) need no folder, so a container's small /dev/shm does not matter, and they
vanish with the last process that holds them.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sandbox.task.specs import TensorSpec
from sandbox.workers.page_locked import PageLocked, lock

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""What torch's own CPU allocator gives, in bytes."""
_ADD_SEALS, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1033, 0x2, 0x4, 0x10


def layout(specs: Sequence[TensorSpec], guard: int = 0) -> tuple[list[int], int]:
    """Byte offset of each tensor, with `guard` bytes before and after each, and the bytes of all."""
    offsets, position = [], 0
    for spec in specs:
        position = _align(position + guard)
        offsets.append(position)
        position += spec.extent * spec.itemsize + guard
    return offsets, max(_align(position), mmap.PAGESIZE)


def _align(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


class Segment:
    """A piece of shared memory, mapped into this process as long as a tensor over it lives."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        """Map the file; `fd` is taken over. Raises OSError when there is not enough memory."""
        self.fd, self.size = fd, size
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(fd, size, flags=flags, prot=access)
        self._locked: PageLocked | None = None

    @classmethod
    def create(cls, size: int) -> Segment:
        """New zeroed memory, writable here."""
        fd = os.memfd_create("cuda_agent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            return cls(fd, size, writable=True)
        except BaseException:
            os.close(fd)
            raise

    def seal(self) -> None:
        """From now on nobody can map it writable any more; this process's mapping stays as it is.

        Kernels before 5.1 do not know this; a candidate's process then maps it read-only all the
        same, but could undo that.
        """
        import fcntl

        seals = _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE
        with suppress(OSError):
            fcntl.fcntl(self.fd, _ADD_SEALS, seals)

    def lock_pages(self) -> None:
        """Let copies between this memory and the device go at full speed (see `page_locked`), where that works. It is
        done once, and holds until `close`, or the end of the last reference to this object."""
        if self._locked is None:
            self._locked = lock(self.bytes().data_ptr(), self.size)

    def tensor(self, spec: TensorSpec, offset: int) -> torch.Tensor:
        """A tensor over this memory, starting at a byte offset. It keeps the memory mapped."""
        import torch

        dtype = getattr(torch, spec.dtype)
        if not spec.extent:
            return torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not writable" is what we want
            flat = torch.frombuffer(self._map, dtype=dtype, count=spec.extent, offset=offset)
        return flat.as_strided(spec.shape, spec.stride)

    def bytes(self) -> torch.Tensor:
        """All of it as uint8, shape [size]."""
        return self.tensor(TensorSpec("uint8", (self.size,), (1,)), 0)

    def close(self) -> None:
        """Give up the file. The memory goes with the last tensor here and the last process elsewhere.

        The mapping is not closed: torch.frombuffer refers to it but does not count as a user.
        """
        if self._locked is not None:
            self._locked.unlock()
            self._locked = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        with suppress(OSError, AttributeError, TypeError):  # at the interpreter's end much is gone
            self.close()
