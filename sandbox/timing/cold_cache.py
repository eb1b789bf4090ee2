"""Put the processor's caches into the same, cold state before each timed call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.perturb_inputs import flat_storage

if TYPE_CHECKING:
    import torch

FALLBACK_BYTES = 1 << 26


class ColdCache:
    """Evicts tensors from all caches: line by line where the launcher can, else by streaming.

    Flushing a line from any process evicts it everywhere, so the judge does it for the workers.
    It leaves the rest of the caches alone; streaming through a large buffer (one thread, so that no
    thread pool of this process is left spinning) evicts all.
    """

    def __init__(self) -> None:
        self._flush: Callable[[int, int], None] | None = _launcher_flush()
        self._buffer: Any = None

    def evict(self, tensors: Sequence[torch.Tensor]) -> None:
        """Evict the memory of CPU tensors."""
        if self._flush is None:
            self._stream()
            return
        for tensor in tensors:
            if tensor.numel():
                self._flush(tensor.data_ptr(), flat_storage(tensor).nbytes)

    def _stream(self) -> None:
        import numpy

        if self._buffer is None:
            self._buffer = numpy.zeros(FALLBACK_BYTES, dtype=numpy.uint8)
        self._buffer += 1


def _launcher_flush() -> Callable[[int, int], None] | None:
    try:
        from sandbox import _launcher
    except ImportError:
        return None
    return getattr(_launcher, "flush", None)
