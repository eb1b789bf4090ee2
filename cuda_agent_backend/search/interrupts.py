"""Ctrl-C while a search is waited for: the first ends the search, a second one soon after is the program's own."""

from __future__ import annotations

import math
import time

AGAIN_S = 3.0
"""A second interrupt within so many seconds is meant for the program, even where the next search has begun."""

_last = -math.inf


def ends_the_search(now: float | None = None) -> bool:
    """Take note of an interrupt; False where it is the second of two, which the program gets."""
    global _last
    moment = time.monotonic() if now is None else now
    first = moment - _last > AGAIN_S
    _last = moment
    return first


def since(moment: float) -> bool:
    """Whether there was an interrupt at or after a moment of `time.monotonic`."""
    return _last >= moment
