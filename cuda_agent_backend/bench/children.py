"""Child processes: each in a process group of its own, limited in time, and killed with all that is in the group."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.request import LATER, Request
from cuda_agent_backend.runtime.child_process import child_environment
from sandbox.workers.settings import steady_threads

CHILD = "cuda_agent_backend.bench.child"
TAIL_LINES, TAIL_BYTES = 30, 1 << 14
TASKS_PER_CHILD = 32
SPARE_S, SPARE_SHARE = 5.0, 0.1
"""Before a phase is killed at its limit, the seconds, or the part of it if that is less, that it has to say what it
knows."""


@dataclass(frozen=True)
class Failed:
    """A phase that gave no answer, or one that says why not. log: the end of what it printed.

    memory: see `memory`. leases: of a search, see `sandbox.memory.notes`. Both as far as they are known.
    """

    phase: str
    reason: str
    log: str = ""
    status: str = "failed"
    memory: Mapping[str, Any] = field(default_factory=dict)
    leases: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedOut(Failed):
    """A phase that took too long: the task's own code did, unless it is `OutOfTime`."""

    status: str = "timed_out"


@dataclass(frozen=True)
class OutOfTime(TimedOut):
    """A phase that was ended at its limit, which also counts waiting for others: what it had found by then is kept."""


class Interrupted(Exception):
    """The run is being stopped: this phase has no result, and no other is to begin."""


class Children:
    """Runs phases. Several threads may use it; torch_dir: where torch's own caches are to be.

    Starting a process and its search costs more than most tasks, so one that has answered well takes the next task of
    its kind, up to `TASKS_PER_CHILD`; one that says that a task changed it (see `child`), or was killed, takes none.
    A task of its own fault does not cost the process, which looks after each one whether it is still fit.
    """

    def __init__(self, torch_dir: Path) -> None:
        self._environment = {
            **child_environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(torch_dir.absolute()),
        }
        self._lock = threading.Lock()
        self._running: set[_Process] = set()
        self._idle: dict[str, list[_Process]] = {}
        self._stopped = False

    def make_ready(self, phase: str, number: int, target: str, folder: Path) -> None:
        """Start processes for a phase before there is work, so that they import meanwhile. They log in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            for one in range(0 if self._stopped else number):
                log = folder / f"{phase}-{one}.log"
                process = self._start(phase, LATER, log, target)
                self._idle.setdefault(phase, []).append(process)

    def prepare(self, phase: str, request: Request, folder: Path) -> None:
        """Tell those that were made ready what they will be asked, so that they get ready for that as well."""
        words = folder / f"{phase}.ahead.json"
        words.write_text(replace(request, result="").to_text(), encoding="utf-8")
        with self._lock:
            for process in self._idle.get(phase, ()):
                process.tell(words)

    def run(
        self, phase: str, request: Request, folder: Path, limit_s: float
    ) -> dict[str, Any] | Failed:
        """One phase; request, log and answer lie in the folder. Raises `Interrupted` once all were stopped."""
        folder.mkdir(parents=True, exist_ok=True)
        answer_by = time.monotonic() + limit_s - min(SPARE_S, SPARE_SHARE * limit_s)
        result = str((folder / f"{phase}.json").absolute())
        request = replace(request, result=result, answer_by=answer_by)
        Path(request.result).unlink(missing_ok=True)
        words, log = folder / f"{phase}.request.json", folder / f"{phase}.log"
        words.write_text(request.to_text(), encoding="utf-8")
        log.unlink(missing_ok=True)
        target = request.wishes.target
        process = self._give(phase, words, log, target)
        ended = process.wait(limit_s)
        if ended and not log.exists():  # it had died before it began this one
            self._take_back(phase, process, good=False)
            process = self._give(phase, words, log, target)
            ended = process.wait(limit_s)
        with self._lock:
            if self._stopped:
                process.close()
                raise Interrupted
        found = answer(phase, process.code, Path(request.result), log)
        # Where it has said why it ends, ending what it started may take longer.
        if ended is None and not isinstance(found, TimedOut):
            found = OutOfTime(phase, f"not done after {limit_s:.0f} s", tail(log))
        self._take_back(phase, process, good=ended is False)
        return found

    def _give(self, phase: str, words: Path, log: Path, target: str) -> _Process:
        """A process that works on the request: one that waits for work, or a new one."""
        with self._lock:
            if self._stopped:
                raise Interrupted
            idle = self._idle.get(phase, [])
            while idle:
                process = idle.pop()
                if process.ask(words):
                    return process
                self._end(process)
            return self._start(phase, str(words), log, target)

    def _start(self, phase: str, words: str, log: Path, target: str) -> _Process:
        more = steady_threads(target) if phase == "measure" else {}
        process = _Process(phase, words, log, {**self._environment, **more})
        self._running.add(process)
        return process

    def _take_back(self, phase: str, process: _Process, good: bool) -> None:
        with self._lock:
            more_to_come = phase != "machine" and process.tasks < TASKS_PER_CHILD
            if good and more_to_come and not self._stopped:
                self._idle.setdefault(phase, []).append(process)
            else:
                self._end(process)

    def _end(self, process: _Process) -> None:
        process.kill()
        process.close()
        self._running.discard(process)

    def rest(self) -> None:
        """End those that wait for work: each holds some of the device's memory."""
        with self._lock:
            self._end_idle()

    def _end_idle(self) -> None:
        for waiting in self._idle.values():
            while waiting:
                self._end(waiting.pop())

    def stop(self) -> None:
        """Kill all that run, and start no other."""
        with self._lock:
            self._stopped = True
            self._end_idle()
            for process in self._running:  # whoever waits for it closes it
                process.kill()


class _Process:
    """One child. It writes a byte to a pipe when a task is done and it could take another. words: see `child`."""

    def __init__(self, phase: str, words: str, log: Path, environment: Mapping[str, str]) -> None:
        self._done, theirs = os.pipe()
        command = [sys.executable, "-m", CHILD, phase, words, str(theirs)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=(theirs,),
            )
        os.close(theirs)
        self._ended = os.pidfd_open(self._process.pid)
        self.tasks = 0 if words == LATER else 1

    @property
    def code(self) -> int:
        """The exit status; 0 while it runs."""
        return self._process.poll() or 0

    def ask(self, words: Path) -> bool:
        """Give it another request; False if it is gone."""
        self.tasks += 1
        return self.tell(words)

    def tell(self, words: Path) -> bool:
        """Give it a request that it does not answer; False if it is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{words.absolute()}\n".encode())
            self._process.stdin.flush()
        except OSError:
            return False
        return self._process.poll() is None

    def wait(self, limit_s: float) -> bool | None:
        """Whether it ended, once it is done with the request or ended; None if neither came in time."""
        poller = select.poll()
        for descriptor in (self._done, self._ended):
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(limit_s * 1000)}
        if not ready:
            return None
        if self._done in ready and os.read(self._done, 1):
            return False
        self._process.wait()
        return True

    def kill(self) -> None:
        """End whatever is left of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Give the descriptors up; nobody waits for it any more."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        os.close(self._ended)
        os.close(self._done)


def answer(phase: str, code: int, result: Path, log: Path) -> dict[str, Any] | Failed:
    """What a child that ended left."""
    try:
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Failed(phase, how_it_ended(code), tail(log))
    memory = found.get("memory", {})
    if "out_of_time" in found:
        reason, leases = str(found["out_of_time"]), found.get("leases", {})
        return OutOfTime(phase, reason, tail(log), memory=memory, leases=leases)
    if "timed_out" in found:
        return TimedOut(phase, str(found["timed_out"]), tail(log), memory=memory)
    if "failed" in found:
        return Failed(phase, str(found["failed"]), tail(log), memory=memory)
    return found


def how_it_ended(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"ended with status {code} and without an answer"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
