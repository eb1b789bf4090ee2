"""The request that the search process is at, and whether anybody still waits for it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Current:
    """Asked from the thread that works, told from the one that reads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._number: Any = None
        self._end = math.inf
        self._unpaid: Callable[[], float] = lambda: 0.0
        self._left: set[Any] = set()

    @contextmanager
    def of(self, request: Mapping[str, Any], unpaid: Callable[[], float]) -> Iterator[None]:
        """While a request is worked on. unpaid: seconds so far that do not count."""
        with self._lock:
            self._number, self._unpaid = request.get("id"), unpaid
            self._end = float(request.get("hard_until", math.inf)) - unpaid()
        try:
            yield
        finally:
            with self._lock:
                self._left.discard(self._number)
                self._number, self._end = None, math.inf

    def leave(self, number: Any) -> bool:
        """Nobody waits for a request any more; whether it is the current one. Others may not have begun."""
        with self._lock:
            self._left.add(number)
            return number is not None and number == self._number

    def is_over(self) -> bool:
        """Whether the current request is to be left at the next step."""
        if self._number is None:
            return False
        return self._number in self._left or self._clock() - self._unpaid() > self._end
