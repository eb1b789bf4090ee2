"""When a graph's time is up: one end for all that its kernels may cost its user's first call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cuda_agent_backend.search import interrupts


class Deadline:
    """The end of a graph's time, from the moment its pass begins: starting, baselines, search, checks and acceptance.

    seconds: how long that is. interrupted: whether the user has ended it since a moment of the clock. unpaid: seconds
    so far that do not count, as those that went by while other processes had the device; it ends as much later.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        interrupted: Callable[[float], bool] = interrupts.since,
        unpaid: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.seconds = seconds
        self._clock, self._interrupted, self._unpaid = clock, interrupted, unpaid
        self.began, self._before_s = clock(), unpaid()
        self.goes_on = False
        """Whether a later process is to go on with the graph."""

    @staticmethod
    def never() -> Deadline:
        """No end but an interrupt."""
        return Deadline(math.inf)

    @property
    def used_s(self) -> float:
        """Seconds since it began, but for those that do not count."""
        return self._clock() - self.began - (self._unpaid() - self._before_s)

    @property
    def left_s(self) -> float:
        """Seconds until it ends; none once the user has ended it."""
        return 0.0 if self.is_interrupted else max(0.0, self.seconds - self.used_s)

    @property
    def is_up(self) -> bool:
        """Whether it has passed by itself."""
        return not self.is_interrupted and self.left_s < 1.0

    @property
    def is_interrupted(self) -> bool:
        """Whether the user has ended it."""
        return self._interrupted(self.began)
