"""How long something was going on, among threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds during which at least one thread was inside `running`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = self._total = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time until this is left."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """One more thread is inside."""
        with self._lock:
            if not self._inside:
                self._since = time.monotonic()
            self._inside += 1

    def stop(self) -> None:
        """One fewer is."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._total += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        """So far."""
        with self._lock:
            now = time.monotonic() - self._since if self._inside else 0.0
            return self._total + now
