"""Turns on a device among processes: `turns` is the same among the threads of one.

Only what runs or times something on the device takes a turn; compiling does not. A turn ends with its process at the
latest, however that ends, since the system gives up the locks of a dead process.

Not covered: processes that take no turns. The A/A control notices them.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DeviceLock:
    """A file that processes lock for their turn; without a path every turn begins at once.

    A second file beside it is the turnstile: who is next holds it while the turn before goes on, so a process that
    comes back at once is not served before those that wait. A turn within a turn of the same thread is part of it.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.waited_s = 0.0
        """Seconds spent waiting for turns."""
        self._thread = threading.local()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The device alone. May raise OSError where the files cannot be opened."""
        if self.path is None or getattr(self._thread, "has_turn", False):
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        turnstile = self.path.with_name(f"{self.path.name}.next")
        started = time.monotonic()
        with _unlocked(turnstile) as first, _unlocked(self.path) as second:
            fcntl.flock(first, fcntl.LOCK_EX)
            fcntl.flock(second, fcntl.LOCK_EX)
            fcntl.flock(first, fcntl.LOCK_UN)
            self.waited_s += time.monotonic() - started
            self._thread.has_turn = True
            try:
                yield
            finally:
                self._thread.has_turn = False


@contextmanager
def _unlocked(path: Path) -> Iterator[int]:
    """A descriptor to lock. It is unlocked at the end, not only closed: a child forked meanwhile may still have it."""
    with path.open("ab") as file:
        try:
            yield file.fileno()
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
