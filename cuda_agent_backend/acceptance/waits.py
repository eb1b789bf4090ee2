"""What a measuring process waits for other processes' turns and leases, as its parent learns of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.stopwatch import Stopwatch

EVENT = "waits"


def telling(emit: Callable[[Mapping[str, Any]], None]) -> Stopwatch:
    """A stopwatch that says when it begins and ends to run: no budget pays for that time, and the parent, which ends
    this process when its time is up, cannot see it otherwise."""
    return Stopwatch(
        changed=lambda seconds, since: emit({"event": EVENT, "seconds": seconds, "since": since})
    )


class Waits:
    """The parent's end. clock: the system's monotonic one, which is the same for all processes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    def hear(self, message: Mapping[str, Any]) -> bool:
        """Take what the process says; False where it is about something else."""
        if message.get("event") != EVENT:
            return False
        since = message.get("since")
        self._seconds = float(message["seconds"])
        self._since = None if since is None else float(since)
        return True

    @property
    def seconds(self) -> float:
        """Up to now."""
        return self._seconds + (0.0 if self._since is None else self._clock() - self._since)
