"""Who may work now: compilers side by side, judgements one at a time with the device to themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandbox.stopwatch import Stopwatch

MAX_STREAK = 16
"""Requests for one task served in a row while others wait: a change of task costs an Inductor compilation."""


class TurnsOver(BaseException):
    """Nobody gets a turn any more: raised in threads that wait for one. As an interrupt, it is no failure of theirs."""


@dataclass(eq=False)
class _Request:
    task: str


class Turns:
    """Gives turns to threads.

    jobs: compilers at once. alone: compilers disturb what is measured, as on cpu, so none runs during
    a turn on the device; the two alternate, and neither starves.
    """

    def __init__(self, jobs: int, alone: bool) -> None:
        if jobs < 1:
            raise ValueError(f"{jobs} compilers at once; at least one is needed")
        self.jobs, self.alone = jobs, alone
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._busy = False
        self._task, self._streak = "", 0
        self._compiling = 0
        self._compilers_waiting = 0
        self._over = False
        self.working, self.judging = Stopwatch(), Stopwatch()
        """While anybody has a turn, and while somebody has the device."""
        self._granted = 0
        """Compilers that may start though the device is wanted: those that waited through the last turn on it."""

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A compiler's turn."""
        with self._changed:
            self._compilers_waiting += 1
            try:
                self._wait(self._may_compile)
            finally:
                self._compilers_waiting -= 1
                self._granted = min(self._granted, self._compilers_waiting)
                self._changed.notify_all()
            self._compiling += 1
        try:
            with self.working.running():
                yield
        finally:
            with self._changed:
                self._compiling -= 1
                self._changed.notify_all()

    @contextmanager
    def device(self, task: str) -> Iterator[None]:
        """A turn on the device. task: any name; requests for the task of the last turn are served first."""
        mine = _Request(task)
        with self._changed:
            self._waiting.append(mine)
            try:
                self._wait(lambda: self._may_use_device(mine))
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
            self._streak = self._streak + 1 if task == self._task else 1
            self._task, self._busy = task, True
        try:
            with self.working.running(), self.judging.running():
                yield
        finally:
            with self._changed:
                self._busy = False
                self._granted = min(self._compilers_waiting, self.jobs)
                self._changed.notify_all()

    def end(self) -> None:
        """Give no more turns. Raises `TurnsOver` in whoever waits for one or asks later."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._over or ready())
        if self._over:
            raise TurnsOver("no more turns are given")

    def _may_compile(self) -> bool:
        if self._compiling >= self.jobs:
            return False
        if not self.alone:
            return True
        return not self._busy and (not self._waiting or self._granted > 0)

    def _may_use_device(self, mine: _Request) -> bool:
        if self._busy or (self.alone and (self._compiling or self._granted)):
            return False
        return self._next() is mine

    def _next(self) -> _Request:
        """The oldest request for the last turn's task, or the oldest of all once there were enough of those."""
        same = (request for request in self._waiting if request.task == self._task)
        others = (request for request in self._waiting if request.task != self._task)
        first, second = (same, others) if self._streak < MAX_STREAK else (others, same)
        return next(first, None) or next(second)
