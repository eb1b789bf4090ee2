"""How long something was going on, among threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of `clock` during which at least one thread was inside `running`.

    changed: is told each time that it begins or ends to run, with the seconds before that and, where it runs, since
    when it does.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[float, float | None], None] = lambda seconds, since: None,
    ) -> None:
        self._clock, self._changed = clock, changed
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
            self._inside += 1
            if self._inside == 1:
                self._since = self._clock()
                self._changed(self._total, self._since)

    def stop(self) -> None:
        """One fewer is."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._total += self._clock() - self._since
                self._changed(self._total, None)

    @property
    def seconds(self) -> float:
        """So far."""
        with self._lock:
            now = self._clock() - self._since if self._inside else 0.0
            return self._total + now
