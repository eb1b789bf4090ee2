"""Regions are made ready in threads, a few ahead of the one that is timed, until the time is up."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

MOST_LONG = 4
"""Of items that take long, so many wait for each other at most before no further item is taken: each of them is ready
with much that is then held until its turn comes."""
SPARE_S = 45.0
"""What a table that was begun in time may take beyond it."""


class Deadline:
    """When a run is to end, so many seconds from now. Nothing is left undone before there is a first table."""

    def __init__(self, seconds: float = float("inf")) -> None:
        self._end = time.monotonic() + seconds
        self.has_table = False

    @property
    def left_s(self) -> float:
        """Seconds; below zero where the time is up."""
        return self._end - time.monotonic()

    def is_over(self) -> bool:
        """Whether what is not ready is left."""
        return self.has_table and self.left_s <= 0

    def cuts(self) -> bool:
        """Whether even what was begun in time is left."""
        return self.has_table and self.left_s <= -SPARE_S


@dataclass(frozen=True)
class _Step(Generic[Given, Made]):
    """What came of one item. later: it takes long and is still to be prepared; ended: there was none."""

    made: Made | None = None
    later: Given | None = None
    ended: bool = False


class Ahead(Generic[Given, Made]):
    """What is ready, in the order in which it is.

    items: taken one at a time by threads, so that who takes what is ready never waits for the next one to be found.
    prepare: what comes of one, None for nothing. ahead: how many are prepared, or ready, beside the one that was taken;
    with none nothing is done between one and the next. is_long: of items that would hold up all others: one of them is
    prepared at a time, beside those.
    """

    def __init__(
        self,
        items: Iterator[Given],
        prepare: Callable[[Given], Made | None],
        ahead: int,
        deadline: Deadline,
        is_long: Callable[[Given], bool] = lambda _: False,
    ) -> None:
        self._items, self._prepare, self._ahead = items, prepare, ahead
        self._deadline, self._is_long = deadline, is_long
        self._taking, self._closed = threading.Lock(), threading.Event()
        self._usual = ThreadPoolExecutor(max_workers=ahead + 1)
        self._long = ThreadPoolExecutor(max_workers=1)
        self._waiting: list[Future[_Step[Given, Made]]] = []
        self._waiting_long: list[Future[_Step[Given, Made]]] = []

    def __iter__(self) -> Iterator[Made]:
        """Until there are no more, or the time is up: then none is begun but the first."""
        more, begun = True, False
        while True:
            while more and self._has_room():
                if begun and self._deadline.left_s <= 0:
                    break
                self._waiting.append(self._usual.submit(self._next))
                begun = True
            step = self._first_done()
            if step is None:
                return
            more = more and not step.ended
            if step.later is not None:
                self._waiting_long.append(self._long.submit(self._prepared, step.later))
            if step.made is not None:
                yield step.made

    def close(self) -> None:
        """Begin nothing more. What is being prepared is not waited for."""
        self._closed.set()
        for threads in (self._usual, self._long):
            threads.shutdown(wait=False, cancel_futures=True)

    def _has_room(self) -> bool:
        return len(self._waiting) <= self._ahead and len(self._waiting_long) < MOST_LONG

    def _first_done(self) -> _Step[Given, Made] | None:
        """None where nothing is waited for, or the time is up."""
        every = [*self._waiting_long, *self._waiting]
        left = self._deadline.left_s if self._deadline.has_table else float("inf")
        patience = None if left > threading.TIMEOUT_MAX else max(0.0, left)
        done = wait(every, patience, FIRST_COMPLETED).done if every else ()
        if not done or self._deadline.is_over():
            return None
        first = next(future for future in every if future in done)
        (self._waiting if first in self._waiting else self._waiting_long).remove(first)
        return first.result()

    def _next(self) -> _Step[Given, Made]:
        with self._taking:
            item = None if self._closed.is_set() else next(self._items, None)
        if item is None:
            return _Step(ended=True)
        return _Step(later=item) if self._is_long(item) else self._prepared(item)

    def _prepared(self, item: Given) -> _Step[Given, Made]:
        return _Step() if self._closed.is_set() else _Step(self._prepare(item))


def side_by_side(
    threads: Executor, work: Callable[[Given], Made], items: Sequence[Given], most: int
) -> list[Made]:
    """What comes of each, in their order. most: so many of them are with the threads at once, so that others get their
    turn meanwhile."""
    waiting: deque[Future[Made]] = deque()
    found: list[Made] = []
    for item in items:
        if len(waiting) >= most:
            found.append(waiting.popleft().result())
        waiting.append(threads.submit(work, item))
    return found + [future.result() for future in waiting]
