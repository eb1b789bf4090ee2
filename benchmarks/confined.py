"""Work on things that are not trusted, side by side, each in a process of its own that is confined like a worker.

A process is forked from this one, which has torch imported and has not woken the device. It reads no files but
Python's and those of its folder and reaches no network. What it does costs its own answer only.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.workers import fork_server
from sandbox.workers.confined_process import ConfinedProcess, Wanted, write_all

Facts = dict[str, Any]
Work = Callable[[Any, Path], Facts]
"""From an item and a folder to write in to JSON values."""
BYTES = 8 << 30
"""Of memory, on cpu."""
POLL_S = 0.5
IN_EACH = ("torch._inductor.codecache",)
"""What every process would import for itself, for `keep_headers`."""


@dataclass
class _Running:
    name: str
    process: ConfinedProcess
    answers: int
    ends: float
    held: bytes = b""


def preload(modules: Iterable[str]) -> None:
    """Import what all processes need, before they are forked. Raises ImportError."""
    fork_server.preload((*modules, *IN_EACH), if_there=("transformers",))


def each(
    items: Iterable[tuple[str, Any]],
    work: Work,
    *,
    jobs: int,
    target: str,
    limit_s: float,
    read: Sequence[Path] = (),
) -> Iterator[tuple[str, Facts]]:
    """Names and facts, in the order in which they come. Of an item without an answer: ``failed``, with the reason.

    limit_s: seconds for one item. read: folders that it may read besides.
    """
    for module in IN_EACH:
        __import__(module)
    wanted = Wanted("confined", target, 1, BYTES, read)
    waiting = iter(items)
    running: list[_Running] = []
    try:
        while True:
            while len(running) < jobs and (item := next(waiting, None)) is not None:
                kept = [one.answers for one in running]
                running.append(_started(item, work, wanted, limit_s, kept))
            if not running:
                return
            ready, _, _ = select.select([one.answers for one in running], [], [], POLL_S)
            for one in list(running):
                facts = _answer(one) if one.answers in ready else None
                if facts is None and time.monotonic() > one.ends:
                    facts = {"failed": f"not done after {limit_s:.0f} s"}
                if facts is not None:
                    running.remove(one)
                    _end(one)
                    yield one.name, facts
    finally:
        for one in running:
            _end(one)


def _started(
    item: tuple[str, Any], work: Work, wanted: Wanted, limit_s: float, kept: Sequence[int]
) -> _Running:
    """kept: descriptors that it does not get, besides its own other end."""
    name, value = item
    answers, theirs = os.pipe()
    process = ConfinedProcess(
        wanted,
        lambda folder: _work(value, work, folder, theirs),
        given=(theirs,),
        kept=(answers, *kept),
    )
    return _Running(name, process, answers, time.monotonic() + limit_s)


def _work(value: Any, work: Work, folder: Path, answers: int) -> None:
    try:
        facts = work(value, folder)
    except Exception as error:  # of the task's code: a fact about it
        first = str(error).strip().partition("\n")[0][:300]
        facts = {"failed": f"{type(error).__name__}: {first}"}
    facts = {**facts, "cpu_s": round(sum(os.times()[:4]), 2)}
    write_all(answers, json.dumps(facts).encode() + b"\n")


def _answer(one: _Running) -> Facts | None:
    """The facts; None where more is to come."""
    part = os.read(one.answers, 1 << 20)
    one.held += part
    if part and not one.held.endswith(b"\n"):
        return None
    try:
        found = json.loads(one.held)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"failed": "its process ended without an answer"}


def _end(one: _Running) -> None:
    one.process.end()
    os.close(one.answers)
