"""Which tasks are under way together: as many as the device has memory for, by what each is known to need."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sandbox.memory.footprint import CONTEXT_BYTES, CONTEXTS, Footprint

UNKNOWN_BYTES = 9 << 30
"""Of a task whose size cannot be had without running it."""
OWN_CONTEXTS = 2
"""Of a phase, beside a search's: its own and the whole graph's measurement."""


def needed_bytes(size: Mapping[str, Any]) -> int:
    """What a phase of a task may come to hold of the device, all its processes together.

    size: bytes of what is given and of outputs, and eager's peak with both (`sizes.Held`), or nothing that is known.
    The phase's own process keeps what is given while a search holds what it may.
    """
    if not size:
        return UNKNOWN_BYTES
    given, outputs, peak = (int(size[name]) for name in ("given", "outputs", "peak"))
    search = Footprint(given, outputs, eager=max(peak - given, outputs), oracle=0, frugal=True)
    return given + search.allowed + (CONTEXTS + OWN_CONTEXTS) * CONTEXT_BYTES


class Admission:
    """Lets those in who fit beside all that are in, one after another in the order in which they came.

    total: bytes that there are for all, None for no limit. Who needs more than that is let in alone.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._held: list[int] = []
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def counts(self) -> bool:
        """Whether there is a limit."""
        return self._total is not None

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait until so many bytes fit, and hold them."""
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            self._changed.wait_for(lambda: self._line[0] is ticket and self._fits(size))
            self._line.popleft()
            self._held.append(size)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held.remove(size)
                self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._held or self._total is None or sum(self._held) + size <= self._total
