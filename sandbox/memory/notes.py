"""What leases came to: bytes that were asked for, and the most that was held of them, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

Notes = dict[str, dict[str, float]]
"""By phase: "leases", how many there were; "asked" and "allowed", the most bytes that one asked for and that the
contract allowed it; "known", of how many it is known what was held; of those "peak", the most bytes that one held,
"of_asked" and "of_allowed", the most that one held of what it had asked for and been allowed."""


class Held:
    """What the processes of a search hold together. Each says, when it gives its memory back, how much it had at most
    since it began; all that were at work at some time may have had that at that time. clock: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._spans: list[tuple[float, float, int]] = []
        self._unknown = False

    def began(self, who: str) -> bool:
        """It holds something from now on; whether it did not before."""
        fresh = who not in self._began
        self._began.setdefault(who, self._clock())
        return fresh

    def ended(self, who: str, peak: int | None) -> None:
        """It has given all back. peak: bytes that it had at most, None where it does not say, as one that died."""
        began = self._began.pop(who, None)
        if began is None:
            return
        if peak is None:
            self._unknown = True
        else:
            self._spans.append((began, self._clock(), peak))

    def take(self) -> int | None:
        """The most that all held at any time since this was asked last; None where somebody did not say."""
        known = not (self._unknown or self._began)
        spans, self._spans, self._began, self._unknown = self._spans, [], {}, False
        at = [begin for begin, _, _ in spans]
        sums = (sum(peak for begin, end, peak in spans if begin <= time <= end) for time in at)
        return max(sums, default=0) if known else None


def noted(phase: str, asked: int | None, allowed: int, peak: int | None) -> Notes:
    """Of one lease. asked: None for all that there was."""
    found: dict[str, float] = {"leases": 1, "asked": asked or 0, "allowed": allowed, "known": 0}
    if peak is not None:
        found |= {"known": 1, "peak": peak, "of_allowed": peak / max(allowed, 1)}
        found |= {"of_asked": peak / max(asked, 1)} if asked else {}
    return {phase.partition(",")[0]: found}


def merged(every: Iterable[Mapping[str, Mapping[str, float]]]) -> Notes:
    """Of several."""
    found: Notes = {}
    for notes in every:
        for phase, values in notes.items():
            own = found.setdefault(phase, {})
            for name, value in values.items():
                counts = name in ("leases", "known")
                own[name] = own.get(name, 0) + value if counts else max(own.get(name, 0), value)
    return found
