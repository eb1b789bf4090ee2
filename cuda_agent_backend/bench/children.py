"""Child processes: each in a process group of its own, limited in time, and killed with all that is in the group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.request import Request
from cuda_agent_backend.wire import child_environment
from sandbox.supervisor import STEADY_THREADS

CHILD = "cuda_agent_backend.bench.child"
TAIL_LINES, TAIL_BYTES = 30, 1 << 14


@dataclass(frozen=True)
class Failed:
    """A phase that gave no answer, or one that says why not. log: the end of what it printed."""

    phase: str
    reason: str
    log: str = ""
    status: str = "failed"


@dataclass(frozen=True)
class TimedOut(Failed):
    """A phase that was killed at its limit."""

    status: str = "timed_out"


class Interrupted(Exception):
    """The run is being stopped: this phase has no result, and no other is to begin."""


class Children:
    """Runs phases. Several threads may use it; torch_dir: where torch's own caches are to be."""

    def __init__(self, torch_dir: Path) -> None:
        self._environment = {
            **child_environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(torch_dir.absolute()),
        }
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(
        self, phase: str, request: Request, folder: Path, limit_s: float
    ) -> dict[str, Any] | Failed:
        """One phase; request, log and answer lie in the folder. Raises `Interrupted` once all were stopped."""
        folder.mkdir(parents=True, exist_ok=True)
        request = replace(request, result=str((folder / f"{phase}.json").absolute()))
        Path(request.result).unlink(missing_ok=True)
        words, log = folder / f"{phase}.request.json", folder / f"{phase}.log"
        words.write_text(request.to_text(), encoding="utf-8")
        command = [sys.executable, "-m", CHILD, phase, str(words)]
        code = self._run(command, log, limit_s, STEADY_THREADS if phase == "measure" else {})
        if self._stopped:
            raise Interrupted
        if code is None:
            return TimedOut(phase, f"not done after {limit_s:.0f} s", tail(log))
        return answer(phase, code, Path(request.result), log)

    def _run(
        self, command: list[str], log: Path, limit_s: float, more: Mapping[str, str]
    ) -> int | None:
        """The exit status; None where it was killed at the limit. more: of the environment."""
        with log.open("wb") as out, self._started(command, out, more) as process:
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _kill(process)
                with self._lock:
                    self._running.discard(process)

    def _started(
        self, command: list[str], out: Any, more: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Interrupted
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self._environment, **more},
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def stop(self) -> None:
        """Kill all that run, and start no other."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def answer(phase: str, code: int, result: Path, log: Path) -> dict[str, Any] | Failed:
    """What a child that ended left."""
    try:
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Failed(phase, how_it_ended(code), tail(log))
    if "timed_out" in found:
        return TimedOut(phase, str(found["timed_out"]), tail(log))
    if "failed" in found:
        return Failed(phase, str(found["failed"]), tail(log))
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
