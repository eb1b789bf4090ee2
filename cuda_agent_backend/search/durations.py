"""What steps of a search took on this machine, and what a graph had already: kept beside the cache for later processes.

It is advice for planning and nothing else: where the file is missing, damaged or cannot be written, plans are made
without it. An entry is forgotten after a day, since another load on the machine makes other times.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent_backend.json_values import write_json
from sandbox.failures import back_off_s
from sandbox.file_locks import lock_at_once

LOCK_S = 2.0

KEPT_S = 86400.0
MOST_STEPS, MOST_GRAPHS = 8, 1000
FIRST_CANDIDATE, JUDGEMENT, ACCEPTANCE = "first candidate", "judgement", "acceptance"
"""Steps: from the request to the first candidate that was timed; of one full judgement; of one measured graph."""

Entry = tuple[float, float]
"""When it was noted (seconds since 1970), and seconds."""


@dataclass
class Book:
    """What the file holds.

    steps: the latest of each kind, in the order in which they were noted. spent: by graph, seconds that searches for it
    had. cut: by measurement of a graph, seconds that were too few for it. failed: by task, when its last search met a
    failure that may pass, and how many did so in a row.
    """

    steps: dict[str, list[Entry]] = field(default_factory=dict)
    spent: dict[str, Entry] = field(default_factory=dict)
    cut: dict[str, Entry] = field(default_factory=dict)
    failed: dict[str, Entry] = field(default_factory=dict)

    @staticmethod
    def parse(value: Any, now: float) -> Book:
        """From JSON values, without what is too old. Raises `ValueError`, `TypeError` or `KeyError` on others."""
        steps = {
            str(kind): kept
            for kind, entries in dict(value["steps"]).items()
            if (kept := [e for e in map(_entry, entries) if _is_fresh(e, now)])
        }
        failed = _fresh(value.get("failed", {}), now)
        return Book(steps, _fresh(value["spent"], now), _fresh(value["cut"], now), failed)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        graphs = {"spent": _latest(self.spent), "cut": _latest(self.cut)}
        return {"steps": self.steps, **graphs, "failed": _latest(self.failed)}

    def waits_s(self, task: str, now: float) -> float:
        """Seconds until a task is searched again, after searches that met failures that may pass."""
        when, times = self.failed.get(task, (now, 0.0))
        return max(0.0, when + back_off_s(int(times)) - now)

    def took(self, kind: str) -> list[float]:
        """Seconds of the latest steps of a kind."""
        return [seconds for _, seconds in self.steps.get(kind, ())]


class Durations:
    """The file of one kernel cache. No method raises for what happens to it. clock: seconds since 1970."""

    def __init__(self, cache_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = cache_dir.with_name(f"{cache_dir.name}-durations.json")
        self._clock = clock

    def read(self) -> Book:
        """What is known now."""
        try:
            return Book.parse(json.loads(self.path.read_text()), self._clock())
        except (OSError, ValueError, TypeError, KeyError):
            return Book()

    def took(self, kind: str) -> list[float]:
        """Seconds of the latest steps of a kind with as many cores as this process has."""
        return self.read().took(_here(kind))

    def spent_s(self, graph: str) -> float:
        """Seconds that searches for a graph had."""
        return self.read().spent.get(graph, (0.0, 0.0))[1]

    def note(self, kind: str, seconds: float) -> None:
        """A step of a kind took so long."""
        with self._changing() as book:
            steps = [*book.steps.get(_here(kind), ()), (self._clock(), seconds)]
            book.steps[_here(kind)] = steps[-MOST_STEPS:]

    def spend(self, graph: str, seconds: float) -> None:
        """A search for a graph had so many seconds more."""
        with self._changing() as book:
            before = book.spent.get(graph, (0.0, 0.0))[1]
            book.spent[graph] = (self._clock(), before + seconds)

    def note_cut(self, measurement: str, seconds: float) -> None:
        """So many seconds were too few to measure a graph."""
        with self._changing() as book:
            book.cut[measurement] = (self._clock(), seconds)

    def waiting(self, tasks: Iterable[str]) -> dict[str, float]:
        """Those of the tasks that are not to be searched yet (see `Book.waits_s`), with the seconds that are left."""
        book, now = self.read(), self._clock()
        waits = {task: book.waits_s(task, now) for task in tasks}
        return {task: seconds for task, seconds in waits.items() if seconds}

    def note_failures(self, passing: Iterable[str], others: Iterable[str] = ()) -> None:
        """The searches of tasks met a failure that may pass, and those of others came to something."""
        bad, good = set(passing), set(others)
        if not bad and not (good & self.read().failed.keys()):
            return
        with self._changing() as book:
            for task in bad:
                times = book.failed.get(task, (0.0, 0.0))[1]
                book.failed[task] = (self._clock(), times + 1)
            for task in good:
                book.failed.pop(task, None)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Book]:
        entered = False
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(self.path.with_suffix(".lock").open("ab"))
            _lock_soon(lock.fileno())
            book = self.read()
            entered = True
            yield book
            write_json(self.path, book.to_json())
        if not entered:
            yield Book()


def _lock_soon(descriptor: int) -> None:
    """Lock it. What is noted here is advice, for which nobody waits long: raises TimeoutError after a while."""
    until = time.monotonic() + LOCK_S
    while not lock_at_once(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > until:
            raise TimeoutError(f"another process holds the file for more than {LOCK_S:g} s")
        time.sleep(LOCK_S / 100)


def _here(kind: str) -> str:
    return f"{kind} on {len(os.sched_getaffinity(0))} cores"


def _entry(value: Any) -> Entry:
    when, seconds = value
    return float(when), float(seconds)


def _is_fresh(entry: Entry, now: float) -> bool:
    """A clock that was set back makes entries of the future, which are dropped, too."""
    return 0 <= now - entry[0] < KEPT_S


def _fresh(value: Any, now: float) -> dict[str, Entry]:
    entries = {str(name): _entry(entry) for name, entry in dict(value).items()}
    return {name: entry for name, entry in entries.items() if _is_fresh(entry, now)}


def _latest(entries: dict[str, Entry]) -> dict[str, Entry]:
    ordered = sorted(entries.items(), key=lambda item: item[1], reverse=True)
    return dict(ordered[:MOST_GRAPHS])
