"""Workers that may die: each has a batch of cases at a time. A case that kills one is named, and the rest goes on."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Say = Callable[[dict[str, Any]], None]
OURS = "forced"
"""What stages begin with in which code of ours runs."""
START_S, EAGER_S = 300.0, 30.0
"""For a worker's start, and for what eager takes of a case."""


@dataclass(frozen=True)
class Settings:
    """How workers are run. environment: variables beside the process's own; case_s: seconds for one case."""

    target: str
    schedules: int
    jobs: int
    limit_s: float
    case_s: float = 120.0
    command: Sequence[str] = (sys.executable, "-m", "benchmarks.conformance.worker")
    environments: Sequence[dict[str, str]] = ({},)


@dataclass
class _Batch:
    names: list[str]
    at: tuple[str, str] = ("", "start")
    rows: int = 0


@dataclass
class Pool:
    """Runs batches of cases, and hands rows out as they come, one at a time."""

    settings: Settings
    say: Say
    problem: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, batches: Iterable[Sequence[str]]) -> bool:
        """All batches, or those that fit within the limit; whether all were run. Raises RuntimeError where a worker
        does not even begin, with its last words."""
        waiting: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        for batch in batches:
            waiting.put(batch)
        ends = time.monotonic() + self.settings.limit_s
        with tempfile.TemporaryDirectory(
            prefix="conformance-", ignore_cleanup_errors=True
        ) as scratch:
            threads = [
                threading.Thread(target=self._work, args=(n, waiting, ends, Path(scratch)))
                for n in range(self.settings.jobs)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self.problem:
            raise RuntimeError(f"a worker does not start: {self.problem}")
        return waiting.empty() and time.monotonic() < ends

    def _work(
        self, number: int, waiting: queue.SimpleQueue[Sequence[str]], ends: float, scratch: Path
    ) -> None:
        worker: _Worker | None = None
        try:
            while time.monotonic() < ends and not self.problem:
                try:
                    batch = _Batch(list(waiting.get_nowait()))
                except queue.Empty:
                    return
                while batch.names and time.monotonic() < ends and not self.problem:
                    worker = worker or _Worker(self.settings, number, scratch / str(number))
                    if not self._batch(worker, batch, ends):
                        worker.end()
                        worker = None
        finally:
            if worker:
                worker.end()

    def _batch(self, worker: _Worker, batch: _Batch, ends: float) -> bool:
        """Rows of a batch; False where the worker is of no more use. What is done is taken off the batch."""
        batch.at = ("", "start")
        worker.ask(batch.names)
        while True:
            line = worker.line(min(ends, time.monotonic() + self._patience(batch)))
            if isinstance(line, dict):
                if "begins" in line:
                    batch.at = tuple(line["begins"])
                elif "row" in line:
                    self._hand(line["row"], batch)
                else:
                    batch.names.clear()
                    worker.has_worked = True
                    return True
                continue
            if time.monotonic() >= ends:
                return False
            self._died(worker, batch, line)
            return False

    def _died(self, worker: _Worker, batch: _Batch, what: str) -> None:
        name, stage = batch.at
        status = worker.end()
        if not name:
            if not worker.has_worked:  # else another may do
                self.problem = f"{_ended(status, stage)}: {worker.last_words()}"
            return
        row = _death(name, stage, status, what)
        row["why"] = f"{row['why']}: {worker.last_words()}"[:400]
        self._hand(row, batch)

    def _patience(self, batch: _Batch) -> float:
        if batch.at[1] == "start":
            return START_S
        return (
            self.settings.case_s if batch.at[1] != "eager" else min(self.settings.case_s, EAGER_S)
        )

    def _hand(self, row: dict[str, Any], batch: _Batch) -> None:
        if row["case"] in batch.names:  # one that was done may still bring its worker down
            batch.names.remove(row["case"])
        with self._lock:
            self.say(row)


def _death(name: str, stage: str, status: int | None, what: str) -> dict[str, Any]:
    """The row of a case that its worker did not survive."""
    how = f"no answer within its time, in {stage!r}" if what == "late" else _ended(status, stage)
    if stage.startswith(OURS):
        outcome = "hangs" if what == "late" else "crash"
    else:
        outcome = "inductor fails" if stage == "inductor" else "eager fails"
    return {"case": name, "outcome": outcome, "why": how, "parts": []}


def _ended(status: int | None, stage: str) -> str:
    if status is not None and status < 0:
        return f"{signal.Signals(-status).name} in {stage!r}"
    return f"ended with status {status} in {stage!r}"


class _Worker:
    """A process, and a thread that reads what it says."""

    def __init__(self, settings: Settings, number: int, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        own = settings.environments[number % len(settings.environments)]
        temporary = scratch.parent / "temporary"  # of all: Inductor keeps parsed headers there
        temporary.mkdir(exist_ok=True)
        shared = {
            "TORCHINDUCTOR_CACHE_DIR": str(scratch.parent / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TMPDIR": str(temporary),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        words = ["--target", settings.target, "--schedules", str(settings.schedules)]
        self.has_worked = False
        self._words = scratch / "stderr"
        self._process = subprocess.Popen(
            [*settings.command, *words, "--scratch", str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words.open("w"),
            env={**os.environ, **shared, **own},
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, names: Sequence[str]) -> None:
        """Have cases run."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"cases": list(names)}) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it is dead, which the next line says

    def line(self, until: float) -> dict[str, Any] | str:
        """What it says next; "late" where nothing comes in time, "dead" where nothing will."""
        try:
            found = self._lines.get(timeout=max(until - time.monotonic(), 0.01))
        except queue.Empty:
            return "late"
        if found is None:
            return "dead"
        value: dict[str, Any] = json.loads(found)
        return value

    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        return " ".join(self._words.read_text(encoding="utf-8", errors="replace")[-300:].split())

    def end(self) -> int | None:
        """Kill it with all that it started; its status, that of its own death where it was dead."""
        try:
            status = self._process.wait(0.5) if self._process.poll() is None else None
        except subprocess.TimeoutExpired:
            status = None
        status = self._process.poll() if status is None else status
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return status
