"""Which phases are under way together: as many as jobs were asked for and the device has memory for."""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass(order=True)
class _Ticket:
    """A place in the line: who comes first there is who is to be let in next. bytes: that it holds."""

    later: bool
    number: int
    bytes: int = field(compare=False)
    alone: bool = field(compare=False)


class Admission:
    """Lets those in who fit beside all that are in, one after another in the order in which they came.

    total: bytes that there are for all, None for no limit. jobs: how many are in at once. Who needs more bytes than
    there are is let in alone.
    """

    def __init__(self, total: int | None, jobs: float = math.inf) -> None:
        self._total, self._jobs = total, jobs
        self._numbers = itertools.count()
        self._line: list[_Ticket] = []
        self._in: list[_Ticket] = []
        self._changed = threading.Condition()

    @property
    def counts(self) -> bool:
        """Whether there is a limit to bytes."""
        return self._total is not None

    @contextmanager
    def hold(self, size: int) -> Iterator[Place]:
        """Wait until there is a place with so many bytes, and hold it."""
        with self._changed:
            place = Place(self, self._come_in(_Ticket(True, next(self._numbers), size, False)))
        try:
            yield place
        finally:
            with self._changed:
                self._leave(place.ticket)

    def _again(self, ticket: _Ticket, alone: bool) -> _Ticket:
        """Give a place back and wait for the next, as one step."""
        with self._changed:
            self._leave(ticket)
            return self._come_in(_Ticket(False, next(self._numbers), ticket.bytes, alone))

    def _come_in(self, ticket: _Ticket) -> _Ticket:
        bisect.insort(self._line, ticket)
        try:
            self._changed.wait_for(lambda: self._line[0] is ticket and self._fits(ticket))
        finally:
            self._line.remove(ticket)
            self._changed.notify_all()
        self._in.append(ticket)
        return ticket

    def _leave(self, ticket: _Ticket | None) -> None:
        if ticket is not None:
            self._in.remove(ticket)
            self._changed.notify_all()

    def _fits(self, ticket: _Ticket) -> bool:
        if not self._in:
            return True
        if ticket.alone or any(other.alone for other in self._in) or len(self._in) >= self._jobs:
            return False
        held = sum(other.bytes for other in self._in)
        return self._total is None or held + ticket.bytes <= self._total


class Place:
    """What somebody holds of an admission."""

    def __init__(self, admission: Admission, ticket: _Ticket) -> None:
        self._admission = admission
        self.ticket: _Ticket | None = ticket

    def again(self, alone: bool = False) -> None:
        """Wait for a place for what ends a task's run: before all that have not begun theirs.

        Else a run that is cut off has many tasks that are half done. One step: were the place given back first,
        somebody else could come in before this one asks. alone: nobody else is in meanwhile.
        """
        ticket, self.ticket = self.ticket, None
        assert ticket is not None
        self.ticket = self._admission._again(ticket, alone)
