"""A process for tasks, forked and confined like the sandbox's workers before it sees a task's code.

It reads no files but Python's and those of its own folder, reaches no network and sees no other process. It asks for
the device through a pipe, and the server takes the lock for it, so that a task can neither keep the device nor touch
the lock. Whatever a task does, it costs that task only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandbox.timing.device_lock import DeviceLock
from sandbox.workers.confined_process import ConfinedProcess, Wanted, write_all
from trainer.synthesis.probe.request import ProbeRequest

ALONE, SHARED, DONE, GO = b"alone\n", b"shared\n", b"done\n", b"go\n"
MOST_ANSWER = 4 << 20
"""Bytes of facts."""
TURN_LIMIT_S = 60.0
TIME = "time"
"""The stage of a task that was not done in time."""


REQUESTS = 0
"""The server's standard input."""


class ParentGone(Exception):
    """Who asked is there no more."""


class TaskProcess:
    """This end of it. Its target, threads and limits are those of the first request: later ones have the same.

    closed: a descriptor of this process that it does not get.
    """

    def __init__(self, request: ProbeRequest, lock: DeviceLock, closed: int) -> None:
        self.served = 0
        self._lock = lock
        self._held = b""
        self._answers, their_answers = os.pipe()
        their_asks, self._asks = os.pipe()
        self._ours = [self._answers, self._asks]
        threads = len(os.sched_getaffinity(0)) if request.target == "cpu" else 2
        self._process = ConfinedProcess(
            Wanted("probe", request.target, threads, request.device_bytes),
            lambda folder: _serve(folder, their_answers, their_asks),
            given=(their_answers, their_asks),
            kept=(*self._ours, closed),
        )

    def look(self, request: ProbeRequest) -> dict[str, Any]:
        """The facts of a task. Where they tell of no time or of an end of the process, it cannot be asked again.

        Raises ParentGone where nobody waits for them.
        """
        self.served += 1
        try:
            write_all(self._asks, json.dumps(request.to_json()).encode() + b"\n")
            found = self._facts(request.limit_s)
        except OSError:
            found = None
        return found if found is not None else self._ended()

    def end(self) -> int:
        """Its exit status, or 128 and the signal. Whatever is left of it is ended."""
        status = self._process.end()
        while self._ours:
            os.close(self._ours.pop())
        return status

    def _ended(self) -> dict[str, Any]:
        code = self.end()
        why = f"signal {code - 128}" if code > 128 else f"exit status {code}"
        return {"failed": f"its process ended with {why}", "stage": "process"}

    def _facts(self, limit_s: float) -> dict[str, Any] | None:
        """What the process says; None where it ended without a word. It gets no more time than its limit."""
        deadline = time.monotonic() + limit_s
        after = 0.0
        where = "before its first turn on the device"
        with contextlib.ExitStack() as turn:
            while True:
                line = self._line(deadline, where)
                if line is None or isinstance(line, dict):
                    return line
                if line in (ALONE, SHARED):
                    waiting = time.monotonic()
                    turn.enter_context(self._lock.turn() if line == ALONE else self._lock.shared())
                    waited = time.monotonic() - waiting
                    left = deadline + waited - time.monotonic()
                    after = max(left - TURN_LIMIT_S, 0.0)
                    deadline = time.monotonic() + min(left, TURN_LIMIT_S)
                    os.write(self._asks, GO)
                    where = f"in a turn on the device ({line.decode().strip()})"
                elif line == DONE:
                    turn.close()
                    deadline = max(deadline, time.monotonic()) + after
                    after = 0.0
                    where = "between turns on the device"
                else:
                    return _read(line)

    def _line(self, deadline: float, where: str) -> bytes | dict[str, Any] | None:
        """The next line; what is wrong where none comes in time; None at the end. where: the process is meanwhile."""
        while b"\n" not in self._held:
            left = max(0.0, deadline - time.monotonic())
            ready = select.select([self._answers, REQUESTS], [], [], left)[0]
            if REQUESTS in ready:
                raise ParentGone  # it asks for one task at a time, so this is the end
            if not ready:
                return {"failed": f"not done in time, {where}", "stage": TIME}
            part = os.read(self._answers, 1 << 16)
            if not part:
                return None
            self._held += part
            if len(self._held) > MOST_ANSWER:
                return {"failed": "it says too much", "stage": "process"}
        line, _, self._held = self._held.partition(b"\n")
        return line + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"failed": "no facts", "stage": "process"}


def _serve(scratch: Path, answers: int, asks: int) -> None:
    """In the process, confined: look at tasks until no more come."""
    from trainer.synthesis.probe.regions import regions
    from trainer.synthesis.probe.work import probe, tidy

    with os.fdopen(asks, "rb") as lines:
        device = Turns(answers, lines)
        for number, line in enumerate(lines):
            request = ProbeRequest.from_json(json.loads(line))
            folder = scratch / f"task{number}"
            folder.mkdir()
            look = regions if request.regions else probe
            facts = look(request, folder, device)
            tidy(request.target)
            shutil.rmtree(folder, ignore_errors=True)
            write_all(answers, json.dumps(facts).encode() + b"\n")


class Turns:
    """The device, asked for through pipes: ``alone`` to time something, ``shared`` for other work on it."""

    def __init__(self, answers: int, lines: Any) -> None:
        self._answers, self._lines = answers, lines

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Within it nothing else runs on the device. Not within another turn."""
        return self._turn(ALONE)

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Within it nothing is timed on the device. Not within another turn."""
        return self._turn(SHARED)

    @contextlib.contextmanager
    def _turn(self, kind: bytes) -> Iterator[None]:
        write_all(self._answers, kind)
        self._lines.readline()
        try:
            yield
        finally:
            write_all(self._answers, DONE)
